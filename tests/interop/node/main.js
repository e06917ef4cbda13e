'use strict';

// Runs one scenario: node main.js SCENARIO NAMESRV NAME. The scenarios are described in ../README.md.

const { event } = require('./scene');
const { Scene } = require('./scene');

const SCENARIOS = {
  ...require('./sending'),
  ...require('./consuming'),
  load: require('./load').load,
  ...require('./delaying'),
};

async function main([ scenario, namesrv, name ]) {
  event('client', { version: `ali-ons ${require('ali-ons/package.json').version}`, runtime: `Node.js ${process.version}` });
  const run = SCENARIOS[scenario];
  if (!run) throw new Error(`${scenario} is none of ${Object.keys(SCENARIOS)}`);
  await run(new Scene(namesrv, name));
  event('done');
}

main(process.argv.slice(2)).then(
  () => process.exit(0),
  error => {
    console.error(error);
    event('failed', { why: String(error) });
    process.exit(1);
  }
);
