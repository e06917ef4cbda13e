'use strict';

const fs = require('fs');

const PATIENCE_MS = 100000;

/** Reports one line. Written at once: what is still in a pipe's buffer is lost when the process exits. */
function event(name, fields = {}) {
  fs.writeSync(1, JSON.stringify({ event: name, ...fields }) + '\n');
}

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

async function until(what, condition) {
  for (const end = Date.now() + PATIENCE_MS; !(await condition()); await sleep(20)) {
    if (Date.now() > end) throw new Error(`waited ${PATIENCE_MS} ms for ${what}`);
  }
}

/** Runs a scenario to its end, reports how it ended, and exits. */
function run(scenario) {
  scenario.then(
    () => {
      event('done');
      process.exit(0);
    },
    error => {
      console.error(error);
      event('failed', { why: String(error) });
      process.exit(1);
    }
  );
}

module.exports = { event, run, sleep, until };
