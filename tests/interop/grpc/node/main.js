'use strict';

// Runs one scenario with RocketMQ's gRPC client: node main.js SCENARIO ADDRESS NAME. See ../../README.md.

const { event, run } = require('../../node/telling');
const scenarios = require('./scenarios');
const { Scene } = require('./scene');
const { load } = require('./load');

const SCENARIOS = { ...scenarios, load };

async function main([ scenario, address, name ]) {
  const { version } = require('rocketmq-client-nodejs/package.json');
  event('client', { version: `rocketmq-client-nodejs ${version}`, runtime: `Node.js ${process.version}` });
  await SCENARIOS[scenario.replace('grpc-', '')](new Scene(address, name));
}

run(main(process.argv.slice(2)));
