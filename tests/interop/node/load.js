'use strict';

const { Consumer } = require('ali-ons');
const { event, sleep, until } = require('./scene');

const SENDERS = 4;
const GIVEN_BACK_EACH = 50;
const PACE_MS = 5;
const FAILURE_MS = 100;
const PATIENCE_MS = 100000;

function isGivenBack(message) {
  return message.reconsumeTimes === 0 && Number(message.body.toString()) % GIVEN_BACK_EACH === 0;
}

async function load(scene) {
  await run(scene, { make: body => scene.message(body), isGivenBack, more: {} });
}

/**
 * A producer and a consumer with default settings at work while the cluster is disturbed. `kind` tells how messages are
 * made, which are given back when they come, and what else is told at the end.
 */
async function run(scene, kind) {
  const acknowledged = new Set();
  const times = new Map();
  const errors = {};
  let numbers = 0;
  let newest = 0;
  let longestGap = 0;
  let stopped = false;

  const consumer = await scene.consumer('a');
  consumer.subscribe(scene.topic, '*', async message => {
    const body = message.body.toString();
    if (kind.isGivenBack(message)) return Consumer.ACTION_RETRY;
    times.set(body, (times.get(body) || 0) + 1);
    return undefined;
  });
  const producer = await scene.producer();
  const count = name => { errors[name] = (errors[name] || 0) + 1; };

  async function sendForever() {
    while (!stopped) {
      const body = String(++numbers);
      try {
        const { sendStatus } = await producer.send(kind.make(body));
        if (sendStatus === 'SEND_OK') {
          acknowledged.add(body);
          const now = Date.now();
          if (newest) longestGap = Math.max(longestGap, now - newest);
          newest = now;
        } else {
          count('not SEND_OK');
        }
      } catch (error) {
        console.error(body, String(error));
        count(error.code ? `${error.name} ${error.code}` : error.name);
        await sleep(FAILURE_MS);
      }
      await sleep(PACE_MS);
    }
  }

  const senders = [ ...Array(SENDERS).keys() ].map(sendForever);
  await until('messages to flow', () => acknowledged.size >= 200 && times.size >= 200);
  longestGap = 0;
  event('running');
  await new Promise(resolve => process.stdin.once('data', resolve));
  stopped = true;
  await Promise.all(senders);
  longestGap = Math.max(longestGap, Date.now() - newest); // nothing since the newest counts as well
  const missing = () => [ ...acknowledged ].filter(body => !times.has(body));
  for (const end = Date.now() + PATIENCE_MS; missing().length && Date.now() < end;) await sleep(50);
  event('load', {
    acknowledged: acknowledged.size, errors, received: times.size, missing: missing(),
    twice: [ ...times.values() ].filter(number => number > 1).length, longest_gap_ms: longestGap,
    ...kind.more,
  });
}

module.exports = { load, run };
