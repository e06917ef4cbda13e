package main

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// rebalanced is longer than this library's consumers take to share queues anew after they were told to.
const rebalanced = 3 * time.Second

// push: two instances share the queues, one leaves, and a third goes on where all ended.
func push(s scene) {
	all := newTally()
	p := s.producer("producer")
	a := all.start(s, s.consumer("a"), "a", consumer.MessageSelector{})
	b := all.start(s, s.consumer("b"), "b", consumer.MessageSelector{})
	time.Sleep(rebalanced)
	s.send(p, 0, 100)
	all.awaitSeen(100)
	time.Sleep(time.Second)
	must(b.Shutdown())
	event("stopped", "by", "b")
	time.Sleep(rebalanced)
	s.send(p, 100, 200)
	all.awaitSeen(200)
	time.Sleep(time.Second)
	must(a.Shutdown())
	event("stopped", "by", "a")
	s.send(p, 200, 220)
	c := all.start(s, s.consumer("c"), "c", consumer.MessageSelector{})
	all.awaitSeen(220)
	time.Sleep(time.Second)
	must(c.Shutdown())
	must(p.Shutdown())
}

// broadcast: two instances read everything.
func broadcast(s scene) {
	all := newTally()
	p := s.producer("producer")
	s.send(p, 0, 10)
	for _, instance := range []string{"a", "b"} {
		all.start(s, s.consumer(instance, consumer.WithConsumerModel(consumer.BroadCasting)), instance, consumer.MessageSelector{})
	}
	s.send(p, 10, 40)
	await("40 messages twice", func() bool { return all.count() >= 80 })
	time.Sleep(time.Second)
	must(p.Shutdown())
}

// orderly: messages of one key arrive in the order they were sent, while instances come and go.
func orderly(s scene) {
	all := newTally()
	p := s.producer("producer", producer.WithQueueSelector(producer.NewHashQueueSelector()))
	a := all.start(s, s.consumer("a", consumer.WithConsumerOrder(true)), "a", consumer.MessageSelector{})
	b := all.start(s, s.consumer("b", consumer.WithConsumerOrder(true)), "b", consumer.MessageSelector{})
	time.Sleep(rebalanced)
	sendKeys(s, p, 0, 20)
	all.awaitSeen(160)
	time.Sleep(time.Second)
	must(b.Shutdown())
	sendKeys(s, p, 20, 40)
	all.awaitSeen(320)
	time.Sleep(500 * time.Millisecond)
	must(a.Shutdown())
	must(p.Shutdown())
}

func sendKeys(s scene, p rocketmq.Producer, from, to int) {
	for i := from; i < to; i++ {
		for key := 0; key < 8; key++ {
			body := fmt.Sprintf("%d-%d", key, i)
			_, err := p.SendSync(context.Background(), s.message(body).WithShardingKey(fmt.Sprint(key)))
			must(err)
			event("sent", "form", "by key", "body", body)
		}
	}
}

func tags(s scene) {
	all := newTally()
	p := s.producer("producer")
	for i := 0; i < 40; i++ {
		// AaTag and BBTag have the same hash code: the broker lets both pass, the client does not.
		tag := []string{"AaTag", "BBTag", "TagC", ""}[i%4]
		body := fmt.Sprintf("m-%d-%s", i, tag)
		m := s.message(body)
		if tag != "" {
			m.WithTag(tag)
		}
		_, err := p.SendSync(context.Background(), m)
		must(err)
		event("sent", "form", "tagged", "body", body)
	}
	all.start(s, s.consumer("a"), "a", consumer.MessageSelector{Type: consumer.TAG, Expression: "AaTag || TagC"})
	all.awaitSeen(20)
	time.Sleep(time.Second)
}

func sql(s scene) {
	all := newTally()
	p := s.producer("producer")
	for i := 0; i < 40; i++ {
		m := s.message(fmt.Sprintf("m-%d", i)).WithTag([]string{"even", "odd"}[i%2])
		m.WithProperty("number", fmt.Sprint(i))
		if i%4 != 0 {
			colour := "grün"
			if i%3 == 0 {
				colour = "rot"
			}
			m.WithProperty("colour", colour)
		}
		_, err := p.SendSync(context.Background(), m)
		must(err)
		event("sent", "form", "with properties", "body", string(m.Body))
	}
	all.start(s, s.consumer("a"), "a", consumer.MessageSelector{Type: consumer.SQL92, Expression: "(TAGS = 'odd' OR colour IS NULL) AND number BETWEEN 5 AND 35 AND NOT (colour = 'rot')" +
		" OR colour IN ('blau', 'grün') AND number = 2"})
	await("messages", func() bool { return all.count() > 0 })
	time.Sleep(3 * time.Second)
	// This library never asks the broker whether an expression is good, so there is nothing that could be refused.
	event("refused", "why", "not asked by this client")
}

// start: where a new group begins.
func start(s scene) {
	all := newTally()
	p := s.producer("producer")
	s.send(p, 0, 8)
	time.Sleep(2100 * time.Millisecond)
	now := time.Now()
	s.send(p, 8, 16)
	for name, where := range map[string]consumer.ConsumeFromWhere{
		"first": consumer.ConsumeFromFirstOffset, "last": consumer.ConsumeFromLastOffset, "timestamp": consumer.ConsumeFromTimestamp,
	} {
		all.start(s, s.consumer(name, consumer.WithGroupName(s.group+"-"+name), consumer.WithConsumerModel(consumer.BroadCasting),
			consumer.WithConsumeFromWhere(where), consumer.WithConsumeTimestamp(now.Format("20060102150405"))),
			name, consumer.MessageSelector{})
	}
	all.start(s, s.consumer("young", consumer.WithGroupName(s.group+"-young"), consumer.WithConsumeFromWhere(consumer.ConsumeFromLastOffset)),
		"young", consumer.MessageSelector{})
	time.Sleep(rebalanced)
	s.send(p, 16, 24)
	await("24 + 8 + 16 + 24 messages", func() bool { return all.count() >= 72 })
	time.Sleep(time.Second)
}

const attempts = 3

func retry(s scene) {
	var failures atomic.Int32
	c := s.consumer("a", consumer.WithMaxReconsumeTimes(attempts-1))
	must(c.Subscribe(s.topic, consumer.MessageSelector{}, func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		received("a", messages[0])
		if strings.HasPrefix(string(messages[0].Body), "bad") {
			failures.Add(1)
			concurrent, _ := primitive.GetConcurrentlyCtx(ctx)
			concurrent.DelayLevelWhenNextConsume = 1
			return consumer.ConsumeRetryLater, nil
		}
		return consumer.ConsumeSuccess, nil
	}))
	failing(s, c, &failures)
}

func retryOrderly(s scene) {
	var failures atomic.Int32
	// Here this library counts what came again after it had failed twice.
	c := s.consumer("a", consumer.WithMaxReconsumeTimes(attempts-2), consumer.WithConsumerOrder(true),
		consumer.WithSuspendCurrentQueueTimeMillis(100*time.Millisecond))
	must(c.Subscribe(s.topic, consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		received("a", messages[0])
		if strings.HasPrefix(string(messages[0].Body), "bad") {
			failures.Add(1)
			return consumer.SuspendCurrentQueueAMoment, nil
		}
		return consumer.ConsumeSuccess, nil
	}))
	failing(s, c, &failures)
}

func failing(s scene, c rocketmq.PushConsumer, failures *atomic.Int32) {
	p := s.producer("producer")
	for _, body := range []string{"good-0", "bad-0", "good-1", "bad-1", "good-2"} {
		_, err := p.SendSync(context.Background(), s.message(body))
		must(err)
		event("sent", "form", "sync", "body", body)
	}
	must(c.Start())
	await("two messages to fail three times", func() bool { return failures.Load() >= 2*attempts })
	// The last failure is still to be told to the broker.
	time.Sleep(3 * time.Second)
}

// reset waits for its group to be reset to a time by whoever runs the cluster: this library cannot order it.
func reset(s scene) {
	all := newTally()
	p := s.producer("producer")
	s.send(p, 0, 20)
	time.Sleep(100 * time.Millisecond)
	event("between", "at", time.Now().UnixMilli())
	time.Sleep(100 * time.Millisecond)
	s.send(p, 20, 40)
	all.start(s, s.consumer("a"), "a", consumer.MessageSelector{})
	all.awaitSeen(40)
	time.Sleep(6 * time.Second)
	event("consumed")
	await("20 messages once more", func() bool { return all.count() >= 60 })
	time.Sleep(2 * time.Second)
}
