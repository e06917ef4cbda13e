'use strict';

const { Tally, event, sleep } = require('./scene');
const { run } = require('./load');

/** What the levels 1 to 3 mean, by default. */
const LEVELS_MS = [ 1000, 5000, 10000 ];

async function delays(scene) {
  const all = new Tally();
  await all.start(scene, 'a');
  const producer = await scene.producer();
  for (let i = 0; i < 9; i++) {
    const level = 1 + i % LEVELS_MS.length;
    const message = scene.message(`d-${i}`);
    message.delayTimeLevel = level;
    const due = Date.now() + LEVELS_MS[level - 1];
    const { msgId } = await producer.send(message);
    const latest = Date.now() + LEVELS_MS[level - 1];
    event('sent', { form: `level ${level}`, body: `d-${i}`, id: msgId, due, latest });
  }
  await all.untilSeen(9);
  await sleep(1000);
}

async function loadDelays(scene) {
  const due = new Map();
  const more = { early: 0, latest_ms: 0 };
  await run(scene, {
    make(body) {
      const message = scene.message(body);
      message.delayTimeLevel = 1;
      due.set(body, Date.now() + LEVELS_MS[0]);
      return message;
    },
    isGivenBack(message) {
      const late = Date.now() - due.get(message.body.toString());
      if (late < 0) more.early++;
      more.latest_ms = Math.max(more.latest_ms, late);
      return false;
    },
    more,
  });
}

module.exports = { delays, 'load-delays': loadDelays };
