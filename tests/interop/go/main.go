// Runs one scenario: interop SCENARIO NAMESRV NAME. The scenarios are described in ../README.md.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	queues = 4
	// Ordered consumers of this library do not unlock queues that they hand over: the next one waits until the lock
	// expires, a minute, and looks every 20 seconds.
	patience = 100 * time.Second
)

var out sync.Mutex

// event prints {"event": name, ...} with the given names and values in turn.
func event(name string, pairs ...any) {
	fields := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		fields[pairs[i].(string)] = pairs[i+1]
	}
	rest, err := json.Marshal(fields)
	must(err)
	out.Lock()
	defer out.Unlock()
	separator := ","
	if len(fields) == 0 {
		separator = ""
	}
	fmt.Printf("{\"event\":%q%s%s\n", name, separator, rest[1:])
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// clientKeys are what clients sign their requests with; empty on a cluster without accounts.
func clientKeys() primitive.Credentials {
	return primitive.Credentials{AccessKey: os.Getenv("INTEROP_ACCESS_KEY"), SecretKey: os.Getenv("INTEROP_SECRET_KEY")}
}

// adminKeys are the same of an administrator.
func adminKeys() primitive.Credentials {
	return primitive.Credentials{
		AccessKey: os.Getenv("INTEROP_ADMIN_ACCESS_KEY"), SecretKey: os.Getenv("INTEROP_ADMIN_SECRET_KEY")}
}

// scene is what a scenario plays with: its topic, and clients of its groups. Names of instances begin with the topic,
// too: replies go by them, and several programs may run on this machine.
type scene struct {
	namesrv, topic, group string
}

func (s scene) producer(instance string, options ...producer.Option) rocketmq.Producer {
	p, err := rocketmq.NewProducer(append([]producer.Option{
		producer.WithNameServer(primitive.NamesrvAddr{s.namesrv}),
		producer.WithGroupName(s.topic + "-" + instance),
		producer.WithInstanceName(s.topic + "-" + instance),
		producer.WithCredentials(clientKeys()),
	}, options...)...)
	must(err)
	must(p.Start())
	return p
}

// consumer is one that is not started, of the scenario's group, reading from the first message on.
func (s scene) consumer(instance string, options ...consumer.Option) rocketmq.PushConsumer {
	c, err := rocketmq.NewPushConsumer(append([]consumer.Option{
		consumer.WithNameServer(primitive.NamesrvAddr{s.namesrv}),
		consumer.WithGroupName(s.group),
		consumer.WithInstance(s.topic + "-" + instance),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithCredentials(clientKeys()),
	}, options...)...)
	must(err)
	return c
}

func (s scene) message(body string) *primitive.Message {
	return primitive.NewMessage(s.topic, []byte(body))
}

func (s scene) send(p rocketmq.Producer, from, to int) {
	for i := from; i < to; i++ {
		body := fmt.Sprintf("m-%d", i)
		_, err := p.SendSync(context.Background(), s.message(body))
		must(err)
		event("sent", "form", "sync", "body", body)
	}
}

func received(instance string, m *primitive.MessageExt) {
	event("received", "by", instance, "body", string(m.Body), "id", m.MsgId, "queue", m.Queue.QueueId,
		"offset", m.QueueOffset, "tags", m.GetTags(), "times", m.ReconsumeTimes, "topic", m.Topic,
		"at", time.Now().UnixMilli())
}

// await waits until the condition holds.
func await(what string, condition func() bool) {
	for end := time.Now().Add(patience); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			panic(fmt.Errorf("waited %v for %s", patience, what))
		}
	}
}

// tally counts what arrived, of all consumers and by each.
type tally struct {
	sync.Mutex
	seen map[string]bool
	by   map[string]int
	all  int
}

func newTally() *tally {
	return &tally{seen: map[string]bool{}, by: map[string]int{}}
}

func (t *tally) add(instance string, m *primitive.MessageExt) {
	received(instance, m)
	t.Lock()
	defer t.Unlock()
	t.seen[string(m.Body)] = true
	t.by[instance]++
	t.all++
}

func (t *tally) count() int {
	t.Lock()
	defer t.Unlock()
	return t.all
}

func (t *tally) awaitSeen(number int) {
	await(fmt.Sprintf("%d messages", number), func() bool {
		t.Lock()
		defer t.Unlock()
		return len(t.seen) >= number
	})
}

type listener = func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

func (t *tally) listener(instance string) listener {
	return func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			t.add(instance, m)
		}
		return consumer.ConsumeSuccess, nil
	}
}

func (t *tally) start(s scene, c rocketmq.PushConsumer, instance string, selector consumer.MessageSelector) rocketmq.PushConsumer {
	must(c.Subscribe(s.topic, selector, t.listener(instance)))
	must(c.Start())
	return c
}

var scenarios = map[string]func(scene){
	"send":          sending,
	"push":          push,
	"broadcast":     broadcast,
	"orderly":       orderly,
	"tags":          tags,
	"sql":           sql,
	"start":         start,
	"retry":         retry,
	"retry-orderly": retryOrderly,
	"pull":          pull,
	"admin":         calls,
	"reset":         reset,
	"load":          loadConcurrently,
	"load-orderly":  loadOrderly,

	"delays":            delays,
	"transactions":      transactions,
	"request-reply":     requestReply,
	"trace":             trace,
	"load-delays":       loadDelays,
	"load-transactions": loadTransactions,
	"load-requests":     loadRequests,
	"load-trace":        loadTrace,
}

func main() {
	// The library prints its own log to standard output, between our lines.
	rlog.SetLogLevel("error")
	event("client", "version", "rocketmq-client-go v2.1.2", "runtime", runtime.Version())
	run, known := scenarios[os.Args[1]]
	if !known {
		event("failed", "why", os.Args[1]+" is not among the scenarios")
		os.Exit(2)
	}
	defer func() {
		if reason := recover(); reason != nil {
			event("failed", "why", fmt.Sprint(reason))
			os.Exit(1)
		}
	}()
	run(scene{namesrv: os.Args[2], topic: os.Args[3], group: os.Args[3] + "-group"})
	event("done")
	os.Exit(0)
}
