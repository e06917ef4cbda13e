'use strict';

const { FilterExpression } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');
const { event, sleep, until } = require('../../node/telling');
const { INVISIBLE_MS, told } = require('./scene');

/** One receive; what it fails with is told. */
async function receive(consumer) {
  try {
    return await consumer.receive(16, INVISIBLE_MS);
  } catch (error) {
    event('retried', { why: String(error) });
    await sleep(500);
    return [];
  }
}

async function shutdown(...clients) {
  for (const client of clients) await client.shutdown();
}

async function send(scene) {
  const producer = await scene.producer();
  const pending = [];
  for (const form of [ 'sync', 'async' ]) {
    for (let number = 0; number < 10; number++) {
      const more = { tag: 'tag', keys: [ `key-${number}` ], properties: new Map([[ 'colour', 'grün' ]]) };
      const receipt = scene.send(producer, `${form}-${number}`, more, { form });
      if (form === 'sync') await receipt;
      else pending.push(receipt);
    }
  }
  await Promise.all(pending);
  const consumer = await scene.simple();
  await until('20 messages', async () => {
    for (const message of await receive(consumer)) {
      scene.note('simple', message);
      await consumer.ack(message);
    }
    return scene.received.length >= 20;
  });
  await shutdown(consumer, producer);
}

/** Of 20 messages one is left alone, one is given back, one is kept for longer than it was asked for. */
async function simple(scene) {
  const producer = await scene.producer();
  for (let number = 0; number < 20; number++) {
    await scene.send(producer, `${[ 'left', 'back', 'kept' ][number] ?? 'good'}-${number}`);
  }
  const consumer = await scene.simple();
  const seen = new Set();
  let kept;
  await until('each message', async () => {
    for (const message of await receive(consumer)) {
      const body = scene.note('simple', message);
      const first = !seen.has(body);
      seen.add(body);
      if (first && body.startsWith('back')) {
        await consumer.changeInvisibleDuration(message, INVISIBLE_MS / 2);
      } else if (first && body.startsWith('kept')) {
        await consumer.changeInvisibleDuration(message, 3 * INVISIBLE_MS);
        kept = { message, due: Date.now() + 2 * INVISIBLE_MS };
      } else if (!first || body.startsWith('good')) {
        await consumer.ack(message);
      }
    }
    if (kept && Date.now() >= kept.due) {
      await consumer.ack(kept.message);
      event('acknowledged', { body: kept.message.body.toString() });
      kept = undefined;
    }
    return scene.received.length >= 22 && !kept;
  });
  // What was acknowledged late must not come again after its longer time, either.
  for (const end = Date.now() + 1.5 * INVISIBLE_MS; Date.now() < end;) {
    for (const message of await receive(consumer)) scene.note('simple', message);
  }
  await shutdown(consumer, producer);
}

/** Two share 60 messages, of which some fail always; they are dead after two attempts. */
async function push(scene) {
  const fails = body => body.startsWith('bad');
  const [ a, b ] = [ await scene.push('a', { fails }), await scene.push('b', { fails }) ];
  const producer = await scene.producer();
  for (let number = 0; number < 60; number++) {
    await scene.send(producer, `${number % 20 === 0 ? 'bad' : 'good'}-${number}`);
  }
  await scene.untilReceived(63);
  event('delivered');
  await told(); // when the dead letters are there
  await shutdown(a, b, producer);
}

/** Fails no message: this client makes an ordered one a dead letter then, since it does not know the retry policy. */
async function fifo(scene) {
  event('lacking', { calls: [ 'retry' ] });
  const producer = await scene.producer();
  for (let number = 0; number < 80; number++) {
    await scene.send(producer, `${number % 8}-${number >> 3}`, { messageGroup: `group-${number % 8}` });
  }
  const consumer = await scene.push('fifo');
  await scene.untilReceived(80);
  await sleep(2000); // a message that is delivered once too often comes by then
  await shutdown(consumer, producer);
}

async function filter(scene) {
  const tags = await scene.push('tags', { filter: new FilterExpression('AaTag || TagC') });
  const sql = await scene.push('sql', {
    filter: new FilterExpression("number > 10 AND colour = 'rot'", FilterType.SQL), group: `${scene.topic}-sql`,
  });
  const producer = await scene.producer();
  for (let number = 0; number < 30; number++) {
    const tag = [ 'AaTag', 'BBTag', 'TagC' ][number % 3]; // the first two have the same hash code
    const properties = new Map([[ 'number', String(number) ], [ 'colour', number % 2 ? 'blau' : 'rot' ]]);
    await scene.send(producer, `m-${number}-${tag}`, { tag, properties });
  }
  await scene.untilReceived(29);
  await sleep(2000); // what passes a filter wrongly comes by then
  await shutdown(tags, sql, producer);
}

async function delay(scene) {
  const consumer = await scene.push('delay');
  const producer = await scene.producer();
  for (let number = 0; number < 6; number++) {
    const due = Date.now() + 1000 + 600 * number;
    await scene.send(producer, `d-${number}`, { deliveryTimestamp: new Date(due) }, { due, latest: due + 1000 });
  }
  await scene.untilReceived(6);
  await sleep(1000); // a message that is delivered twice comes by then
  await shutdown(consumer, producer);
}

/** Six messages due in eight seconds, of which the even ones are called back. */
async function recall(scene) {
  const consumer = await scene.push('recall');
  const producer = await scene.producer();
  const handles = [];
  for (let number = 0; number < 6; number++) {
    const receipt = await scene.send(producer, `r-${number}`, { deliveryTimestamp: new Date(Date.now() + 8000) });
    handles.push(receipt.recallHandle);
  }
  for (let number = 0; number < 6; number += 2) {
    const { messageId } = await producer.recallMessage(scene.topic, handles[number]);
    event('recalled', { body: `r-${number}`, id: messageId });
  }
  await scene.untilReceived(3);
  await sleep(5000); // a recalled message that is delivered all the same comes by then
  try {
    event('late', { value: (await producer.recallMessage(scene.topic, handles[1])).messageId });
  } catch (error) {
    event('late', { why: String(error) });
  }
  await shutdown(consumer, producer);
}

/** Two each are committed, rolled back, and left to be asked for. */
async function transactions(scene) {
  const consumer = await scene.push('transactions');
  const producer = await scene.producer({
    checker: {
      async check(message) {
        const body = message.body.toString();
        event('checked', { body, id: message.messageId, topic: message.topic });
        return body.endsWith('commit') ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
      },
    },
  });
  for (let number = 0; number < 8; number++) {
    const verdict = [ 'commit', 'rollback', 'late-commit', 'late-rollback' ][number % 4];
    const transaction = producer.beginTransaction();
    await scene.send(producer, `t-${number}-${verdict}`, {}, {}, transaction);
    if (verdict === 'commit') await transaction.commit();
    if (verdict === 'rollback') await transaction.rollback();
  }
  await scene.untilReceived(4);
  await sleep(8000); // a message that was rolled back would come by then
  await shutdown(consumer, producer);
}

module.exports = { send, simple, push, fifo, filter, delay, recall, transactions };
