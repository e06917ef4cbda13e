// Runs one scenario with RocketMQ's gRPC client: interop SCENARIO ADDRESS NAME. See ../../README.md.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"sort"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const (
	patience = 100 * time.Second
	// The shortest time that the proxy allows with a receive.
	invisible = 10 * time.Second
)

var out sync.Mutex

type fields map[string]any

// event prints {"event": name, ...}.
func event(name string, more fields) {
	rest, err := json.Marshal(more)
	must(err)
	out.Lock()
	defer out.Unlock()
	separator := ","
	if len(more) == 0 {
		separator = ""
	}
	fmt.Printf("{\"event\":%q%s%s\n", name, separator, rest[1:])
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func await(what string, done func() bool) {
	for end := time.Now().Add(patience); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			panic(fmt.Sprintf("waited %v for %s", patience, what))
		}
	}
}

// scene is the topic and the group of one scenario, clients for them, and what they have received.
type scene struct {
	address, topic, group string
	lock                  sync.Mutex
	received              []string
}

func (s *scene) config(group string) *rmq.Config {
	return &rmq.Config{Endpoint: s.address, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{
		AccessKey: os.Getenv("INTEROP_ACCESS_KEY"), AccessSecret: os.Getenv("INTEROP_SECRET_KEY")}}
}

func (s *scene) producer(options ...rmq.ProducerOption) rmq.Producer {
	p, err := rmq.NewProducer(s.config(""), append(options, rmq.WithTopics(s.topic))...)
	must(err)
	must(p.Start())
	return p
}

func (s *scene) simple() rmq.SimpleConsumer {
	// A call has this time and 3 s more, and proxies refuse calls with less than 5 s.
	c, err := rmq.NewSimpleConsumer(s.config(s.group), rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{s.topic: rmq.SUB_ALL}))
	must(err)
	must(c.Start())
	return c
}

func never(string) bool { return false }

// push starts a consumer that fails the messages for whose body fails is true.
func (s *scene) push(by, group string, filter *rmq.FilterExpression, fails func(string) bool) rmq.PushConsumer {
	c, err := rmq.NewPushConsumer(s.config(group),
		rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{s.topic: filter}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: func(m *rmq.MessageView) rmq.ConsumerResult {
			if fails(s.note(by, m)) {
				return rmq.FAILURE
			}
			return rmq.SUCCESS
		}}))
	must(err)
	must(c.Start())
	return c
}

func (s *scene) message(body string) *rmq.Message {
	return &rmq.Message{Topic: s.topic, Body: []byte(body)}
}

// note reports a message that came; it returns its body.
func (s *scene) note(by string, m *rmq.MessageView) string {
	body, keys := string(m.GetBody()), append([]string{}, m.GetKeys()...)
	sort.Strings(keys)
	event("received", fields{"by": by, "body": body, "id": m.GetMessageId(), "tags": m.GetTag(), "keys": keys,
		"properties": m.GetProperties(), "topic": m.GetTopic(), "group": m.GetMessageGroup(),
		"times": m.GetDeliveryAttempt() - 1, "at": time.Now().UnixMilli()})
	s.lock.Lock()
	defer s.lock.Unlock()
	s.received = append(s.received, body)
	return body
}

func (s *scene) count() int {
	s.lock.Lock()
	defer s.lock.Unlock()
	return len(s.received)
}

func (s *scene) awaitReceived(number int) {
	await(fmt.Sprint(number, " deliveries"), func() bool { return s.count() >= number })
}

// send sends one message and reports it.
func (s *scene) send(p rmq.Producer, m *rmq.Message, more fields) {
	receipts, err := p.Send(context.Background(), m)
	must(err)
	sent(string(m.Body), receipts, more)
}

func sent(body string, receipts []*rmq.SendReceipt, more fields) {
	told := fields{"body": body, "id": receipts[0].MessageID, "offset": receipts[0].Offset}
	for name, value := range more {
		told[name] = value
	}
	event("sent", told)
}

func main() {
	scenarios := map[string]func(*scene){"grpc-send": send, "grpc-simple": simple, "grpc-push": push,
		"grpc-fifo": fifo, "grpc-filter": filter, "grpc-delay": delay, "grpc-transactions": transactions,
		"grpc-load": load}
	defer func() {
		if why := recover(); why != nil {
			event("failed", fields{"why": fmt.Sprint(why)})
			panic(why)
		}
	}()
	event("client", fields{"version": "rocketmq-clients/golang v5.1.3", "runtime": runtime.Version()})
	scenarios[os.Args[1]](&scene{address: os.Args[2], topic: os.Args[3], group: os.Args[3] + "-group"})
	event("done", fields{})
}
