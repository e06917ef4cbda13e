'use strict';

// Runs one scenario: node main.js SCENARIO NAMESRV NAME. The scenarios are described in ../README.md.

const { Scene } = require('./scene');
const { event, run } = require('./telling');

const SCENARIOS = {
  ...require('./sending'),
  ...require('./consuming'),
  load: require('./load').load,
  ...require('./delaying'),
};

async function main([ scenario, namesrv, name ]) {
  event('client', { version: `ali-ons ${require('ali-ons/package.json').version}`, runtime: `Node.js ${process.version}` });
  const play = SCENARIOS[scenario];
  if (!play) throw new Error(`${scenario} is none of ${Object.keys(SCENARIOS)}`);
  await play(new Scene(namesrv, name));
}

run(main(process.argv.slice(2)));
