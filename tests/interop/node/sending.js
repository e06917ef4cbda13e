'use strict';

const crypto = require('crypto');
const { crc32, event, until } = require('./scene');

/** This library sends in one way: a promise. There are no batches, no one-way sends and no choice of a queue. */
async function send(scene) {
  const producer = await scene.producer();
  for (const name of [ '0', '1', '2' ]) await report(producer, 'sync', decorated(scene, `sync-${name}`));
  await Promise.all([ ...Array(10).keys() ].map(i => report(producer, 'async', decorated(scene, `async-${i}`))));
  const delayed = scene.message('delayed');
  delayed.delayTimeLevel = 1;
  await report(producer, 'delayed', delayed);
  for (const name of [ '0', '1', '2' ]) {
    const message = scene.message(`sharded-${name}`);
    // Not every key does: those that belong to queue 0 go to any queue, a slip of this library.
    message.shardingKey = 'order-1';
    await report(producer, 'sharded', message);
  }
  await report(producer, 'compressed', scene.message('ZLIB grüßt 😀 '.repeat(2000)));
  // It compresses all that is long, and random bytes grow by that.
  const patient = await scene.producer('patient', { sendMsgTimeout: 30000 });
  await report(patient, 'largest', scene.message(crypto.randomBytes(4 * 1024 * 1024 - 4096)));
  await producer.close();
  await read(scene);
}

/** What the consumer makes of what the producer sent. */
async function read(scene) {
  const bodies = new Set();
  const consumer = await scene.consumer('reading');
  consumer.subscribe(scene.topic, '*', async ({ body, queueId, queueOffset, tags, keys, properties }) => {
    bodies.add(crc32(body));
    event('read', {
      crc: crc32(body), queue: queueId, offset: queueOffset, tags: tags || null, keys: keys || null,
      ...(properties.colour && { colour: properties.colour, face: properties.face }),
    });
  });
  await until(`${reported} messages`, () => bodies.size >= reported);
}

let reported = 0;

function decorated(scene, body) {
  const message = scene.message(body);
  message.tags = 'TagA';
  message.keys = [ `k-${body}`, 'schlüssel' ];
  message.properties.colour = 'grün';
  message.properties.face = '😀 "quoted" {} \\ \t';
  return message;
}

async function report(producer, form, message) {
  const { tags, keys, body } = message;
  const { colour, face } = message.properties;
  try {
    const result = await producer.send(message);
    reported++;
    event('sent', {
      form, crc: crc32(body), length: body.length, tags: tags || null, keys: keys || null, colour, face,
      status: result.sendStatus, queue: Number(result.messageQueue.queueId), offset: result.queueOffset,
      // It gives messages no unique ids; what it tells is the broker's.
      offset_id: result.msgId, untold: [ 'id' ],
    });
  } catch (error) {
    event('unsent', { form, why: String(error) });
  }
}

module.exports = { send };
