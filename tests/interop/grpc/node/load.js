'use strict';

const { event, sleep, until } = require('../../node/telling');
const { told } = require('./scene');

/** A producer and a push consumer at work while servers are disturbed, until a line comes. */
async function load(scene) {
  const acknowledged = new Set();
  const errors = {};
  let stopped = false;
  let newest = Date.now();
  let longest = 0;
  const consumer = await scene.push('load');
  const producer = await scene.producer();

  async function work() {
    for (let number = 0; !stopped; number++) {
      try {
        await producer.send(scene.message(String(number)));
        acknowledged.add(String(number));
        longest = Math.max(longest, Date.now() - newest);
        newest = Date.now();
        await sleep(10);
      } catch (error) {
        errors[error] = (errors[error] ?? 0) + 1;
        await sleep(100);
      }
    }
  }

  const sending = work();
  await until('messages to flow', () => acknowledged.size >= 100 && scene.received.length >= 100);
  longest = 0;
  event('running');
  await told();
  stopped = true;
  await sending;
  const missing = () => {
    const different = new Set(scene.received);
    return [ ...acknowledged ].filter(body => !different.has(body));
  };
  await until('what was acknowledged', () => missing().length === 0).catch(() => {});
  const different = new Set(scene.received).size;
  event('load', {
    acknowledged: acknowledged.size,
    errors,
    received: different,
    missing: missing(),
    twice: scene.received.length - different,
    longest_gap_ms: longest,
  });
  await consumer.shutdown();
  await producer.shutdown();
}

module.exports = { load };
