'use strict';

const zlib = require('zlib');
const { Consumer, Message, Producer } = require('ali-ons');
const { event, sleep, until } = require('./telling');

/** What a scenario plays with: its topic, and clients of its groups. */
class Scene {
  constructor(namesrv, topic) {
    this.namesrv = namesrv;
    this.topic = topic;
    this.group = `${topic}-group`;
  }

  _options(instanceName, more) {
    return {
      nameSrv: this.namesrv,
      httpclient: {}, // for finding name servers, which is not needed here
      accessKey: process.env.INTEROP_ACCESS_KEY, // without keys it does not sign
      secretKey: process.env.INTEROP_SECRET_KEY,
      // Its clients take no notice of the broker's hint to share queues anew; every ten seconds is a bit slow.
      rebalanceInterval: 1000,
      instanceName: `${this.topic}-${instanceName}`,
      logger: { info() {}, debug() {}, warn() {}, error: console.error },
      ...more,
    };
  }

  async producer(instance = 'producer', more = {}) {
    const producer = new Producer(this._options(instance, { producerGroup: `${this.topic}-${instance}`, ...more }));
    producer.on('error', error => console.error(error));
    await producer.ready();
    return producer;
  }

  async consumer(instance, more = {}) {
    const consumer = new Consumer(this._options(instance, {
      consumerGroup: this.group, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET', ...more,
    }));
    consumer.on('error', error => console.error(error));
    await consumer.ready();
    return consumer;
  }

  message(body) {
    const message = new Message(this.topic, body);
    delete message.properties.TAGS; // it would send a tag "null"
    return message;
  }

  async send(producer, from, to) {
    for (let i = from; i < to; i++) {
      await producer.send(this.message(`m-${i}`));
      event('sent', { form: 'sync', body: `m-${i}` });
    }
  }
}

function received(instance, message) {
  event('received', {
    by: instance,
    body: message.body.toString(),
    id: message.properties.UNIQ_KEY || message.msgId,
    queue: message.queueId,
    offset: message.queueOffset,
    tags: message.tags || null,
    times: message.reconsumeTimes,
    topic: message.topic,
    at: Date.now(),
  });
}

/** Counts what arrived, of all consumers and by each. */
class Tally {
  constructor() {
    this.seen = new Set();
    this.count = 0;
  }

  async start(scene, instance, expression = '*', more = {}) {
    const consumer = await scene.consumer(instance, more);
    consumer.subscribe(scene.topic, expression, async message => {
      received(instance, message);
      this.seen.add(message.body.toString());
      this.count++;
    });
    return consumer;
  }

  async untilSeen(number) {
    await until(`${number} messages`, () => this.seen.size >= number);
  }
}

module.exports = { Scene, Tally, crc32, event, received, sleep, until };

let table;

function crc32(bytes) {
  if (zlib.crc32) return zlib.crc32(bytes);
  table = table || Uint32Array.from({ length: 256 }, (_, n) => {
    for (let bit = 0; bit < 8; bit++) n = n & 1 ? (n >>> 1) ^ 0xedb88320 : n >>> 1;
    return n;
  });
  let crc = 0xffffffff;
  for (const byte of bytes) crc = (crc >>> 8) ^ table[(crc ^ byte) & 0xff];
  return (crc ^ 0xffffffff) >>> 0;
}
