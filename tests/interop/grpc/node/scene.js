'use strict';

const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { event, until } = require('../../node/telling');

/** The shortest time that the proxy allows with a receive. */
const INVISIBLE_MS = 10000;

/** A line of standard input, or its end. */
const told = () => new Promise(resolve => process.stdin.once('data', resolve).once('end', resolve));

/** The topic and the group of one scenario, clients for them, and what they have received. */
class Scene {
  constructor(address, topic) {
    this.address = address;
    this.topic = topic;
    this.group = `${topic}-group`;
    this.received = [];
  }

  _options(more) {
    const { INTEROP_ACCESS_KEY: accessKey, INTEROP_SECRET_KEY: accessSecret } = process.env;
    return {
      endpoints: this.address,
      namespace: '',
      sslEnabled: process.env.INTEROP_GRPC_TLS === 'on',
      requestTimeout: 10000,
      logger: { info() {}, debug() {}, warn: console.error, error: console.error },
      ...(accessKey ? { sessionCredentials: { accessKey, accessSecret } } : {}),
      ...more,
    };
  }

  async producer(more = {}) {
    const producer = new Producer(this._options({ topic: this.topic, ...more }));
    await producer.startup();
    return producer;
  }

  async simple() {
    const consumer = new SimpleConsumer(this._options({
      consumerGroup: this.group, subscriptions: new Map([[ this.topic, FilterExpression.SUB_ALL ]]), awaitDuration: 2000,
    }));
    await consumer.startup();
    return consumer;
  }

  async push(by, { fails = () => false, filter = FilterExpression.SUB_ALL, group = this.group } = {}) {
    const consumer = new PushConsumer(this._options({
      consumerGroup: group,
      subscriptions: new Map([[ this.topic, filter ]]),
      messageListener: {
        consume: async message => fails(this.note(by, message)) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS,
      },
    }));
    await consumer.startup();
    return consumer;
  }

  /** Reports a message that came; returns its body. */
  note(by, message) {
    const body = message.body.toString();
    event('received', {
      by,
      body,
      id: message.messageId,
      tags: message.tag ?? null,
      keys: [ ...message.keys ].sort(),
      properties: Object.fromEntries(message.properties),
      topic: message.topic,
      group: message.messageGroup ?? null,
      times: message.deliveryAttempt - 1,
      at: Date.now(),
    });
    this.received.push(body);
    return body;
  }

  message(body, more = {}) {
    return { topic: this.topic, body: Buffer.from(body), ...more };
  }

  /** Sends one message, and reports it; returns the receipt. */
  async send(producer, body, more = {}, fields = {}, transaction = undefined) {
    const receipt = await producer.send(this.message(body, more), transaction);
    event('sent', { body, id: receipt.messageId, ...fields });
    return receipt;
  }

  async untilReceived(number) {
    await until(`${number} deliveries`, () => this.received.length >= number);
  }
}

module.exports = { INVISIBLE_MS, Scene, told };
