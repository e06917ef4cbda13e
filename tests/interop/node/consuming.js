'use strict';

const { Tally, event, received, sleep, until } = require('./scene');

const REBALANCED_MS = 4000;
const FAILURES = 6;

/** Two instances share the queues, one leaves, and a third goes on where all ended. */
async function push(scene) {
  const all = new Tally();
  const producer = await scene.producer();
  const a = await all.start(scene, 'a');
  const b = await all.start(scene, 'b');
  await sleep(REBALANCED_MS);
  await scene.send(producer, 0, 100);
  await all.untilSeen(100);
  await sleep(1000);
  await b.close();
  event('stopped', { by: 'b' });
  await sleep(REBALANCED_MS);
  await scene.send(producer, 100, 200);
  await all.untilSeen(200);
  await sleep(1000);
  await a.close();
  event('stopped', { by: 'a' });
  await scene.send(producer, 200, 220);
  await all.start(scene, 'c');
  await all.untilSeen(220);
  await sleep(1000);
}

/** Two instances read everything. */
async function broadcast(scene) {
  const all = new Tally();
  const producer = await scene.producer();
  await scene.send(producer, 0, 10);
  for (const instance of [ 'a', 'b' ]) await all.start(scene, instance, '*', { isBroadcast: true });
  await scene.send(producer, 10, 40);
  await until('40 messages twice', () => all.count >= 80);
  await sleep(1000);
}

async function tags(scene) {
  const all = new Tally();
  const producer = await scene.producer();
  for (let i = 0; i < 40; i++) {
    // AaTag and BBTag have the same hash code: the broker lets both pass, the client does not.
    const tag = [ 'AaTag', 'BBTag', 'TagC', '' ][i % 4];
    const message = scene.message(`m-${i}-${tag}`);
    message.tags = tag;
    await producer.send(message);
    event('sent', { form: 'tagged', body: `m-${i}-${tag}` });
  }
  await all.start(scene, 'a', 'AaTag || TagC');
  await all.untilSeen(20);
  await sleep(1000);
}

async function sql(scene) {
  const all = new Tally();
  const producer = await scene.producer();
  for (let i = 0; i < 40; i++) {
    const message = scene.message(`m-${i}`);
    message.tags = [ 'even', 'odd' ][i % 2];
    message.properties.number = i;
    if (i % 4 !== 0) message.properties.colour = i % 3 === 0 ? 'rot' : 'grün';
    await producer.send(message);
    event('sent', { form: 'with properties', body: `m-${i}` });
  }
  await all.start(scene, 'a', {
    expressionType: 'SQL92',
    subString: "(TAGS = 'odd' OR colour IS NULL) AND number BETWEEN 5 AND 35 AND NOT (colour = 'rot')" +
      " OR colour IN ('blau', 'grün') AND number = 2",
  });
  await until('messages', () => all.count > 0);
  await sleep(3000);
  // This library never asks the broker whether an expression is good, so there is nothing that could be refused.
  event('refused', { why: 'not asked by this client' });
}

/** Where a new group begins. */
async function start(scene) {
  const all = new Tally();
  const producer = await scene.producer();
  await scene.send(producer, 0, 8);
  await sleep(2100);
  const now = new Date();
  const pad = number => String(number).padStart(2, '0');
  const consumeTimestamp = now.getFullYear() + [
    now.getMonth() + 1, now.getDate(), now.getHours(), now.getMinutes(), now.getSeconds(),
  ].map(pad).join('');
  await scene.send(producer, 8, 16);
  for (const [ instance, where ] of [
    [ 'first', 'CONSUME_FROM_FIRST_OFFSET' ],
    [ 'last', 'CONSUME_FROM_LAST_OFFSET' ],
    [ 'timestamp', 'CONSUME_FROM_TIMESTAMP' ],
  ]) {
    await all.start(scene, instance, '*', {
      consumerGroup: `${scene.group}-${instance}`, isBroadcast: true, consumeFromWhere: where, consumeTimestamp,
    });
  }
  await all.start(scene, 'young', '*', {
    consumerGroup: `${scene.group}-young`, consumeFromWhere: 'CONSUME_FROM_LAST_OFFSET',
  });
  await sleep(REBALANCED_MS);
  await scene.send(producer, 16, 24);
  await until('24 + 8 + 16 + 24 messages', () => all.count >= 72);
  await sleep(1000);
}

/**
 * The broker chooses the delays: 10 s, then 30 s. The consumer finds the topic of its group's retries when it looks
 * for routes for the second time, 30 s after it was started.
 */
async function retry(scene) {
  let failures = 0;
  const producer = await scene.producer();
  for (const body of [ 'good-0', 'bad-0', 'good-1', 'bad-1', 'good-2' ]) {
    await producer.send(scene.message(body));
    event('sent', { form: 'sync', body });
  }
  const consumer = await scene.consumer('a', { maxReconsumeTimes: 2 });
  consumer.subscribe(scene.topic, '*', async message => {
    received('a', message);
    if (!message.body.toString().startsWith('bad')) return;
    failures++;
    throw new Error('as wanted'); // ACTION_RETRY counts the first time only
  });
  await until('two messages to fail three times', () => failures >= FAILURES);
  await sleep(3000); // the last failure is still to be told to the broker
}

module.exports = { push, broadcast, tags, sql, start, retry };
