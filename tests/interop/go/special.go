package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// levels are what the delay levels 1 to 3 mean, by default.
var levels = []time.Duration{time.Second, 5 * time.Second, 10 * time.Second}

func delays(s scene) {
	all := newTally()
	c := all.start(s, s.consumer("a"), "a", consumer.MessageSelector{})
	p := s.producer("producer")
	for i := 0; i < 9; i++ {
		level := i % len(levels)
		body := fmt.Sprintf("d-%d", i)
		due := time.Now().Add(levels[level])
		result, err := p.SendSync(context.Background(), s.message(body).WithDelayTimeLevel(level+1))
		must(err)
		event("sent", "form", fmt.Sprintf("level %d", level+1), "body", body, "id", result.MsgID,
			"due", due.UnixMilli(), "latest", time.Now().Add(levels[level]).UnixMilli())
	}
	all.awaitSeen(9)
	time.Sleep(time.Second)
	must(c.Shutdown())
	must(p.Shutdown())
}

func loadDelays(s scene) {
	l := newLoading(s, false)
	due := sync.Map{}
	var early, latest atomic.Int64
	l.give = func(p rocketmq.Producer, _ int, body string) (*primitive.SendResult, error) {
		due.Store(body, time.Now().Add(levels[0]))
		return p.SendSync(context.Background(), s.message(body).WithDelayTimeLevel(1))
	}
	l.isGivenBack = func(m *primitive.MessageExt, _ int) bool {
		at, _ := due.Load(string(m.Body))
		late := time.Since(at.(time.Time)).Milliseconds()
		if late < 0 {
			early.Add(1)
		}
		for before := latest.Load(); late > before && !latest.CompareAndSwap(before, late); before = latest.Load() {
		}
		return false
	}
	l.more = func() []any { return []any{"early", early.Load(), "latest_ms", latest.Load()} }
	l.run()
}

// deciding tells of each body what is to become of its transaction, at once and when asked.
type deciding struct {
	first func(body string) primitive.LocalTransactionState
	asked func(m *primitive.MessageExt) primitive.LocalTransactionState
}

func (d deciding) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	return d.first(string(m.Body))
}

func (d deciding) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	return d.asked(m)
}

func (s scene) transactional(group, instance string, d deciding) rocketmq.TransactionProducer {
	p, err := rocketmq.NewTransactionProducer(d,
		producer.WithNameServer(primitive.NamesrvAddr{s.namesrv}),
		producer.WithGroupName(group),
		producer.WithInstanceName(s.topic+"-"+instance),
		producer.WithCredentials(clientKeys()))
	must(err)
	must(p.Start())
	return p
}

func transactions(s scene) {
	verdicts := []string{"commit", "rollback", "late-commit", "late-rollback", "twice"}
	var lock sync.Mutex
	checks := map[string]int{}
	asked := func() int {
		lock.Lock()
		defer lock.Unlock()
		return len(checks)
	}
	d := deciding{
		first: func(body string) primitive.LocalTransactionState {
			switch {
			case strings.Contains(body, "-late-"):
				return primitive.UnknowState
			case strings.HasSuffix(body, "-commit"):
				return primitive.CommitMessageState
			case strings.HasSuffix(body, "-rollback"):
				return primitive.RollbackMessageState
			}
			return primitive.UnknowState
		},
		asked: func(m *primitive.MessageExt) primitive.LocalTransactionState {
			body := string(m.Body)
			lock.Lock()
			checks[body]++
			times := checks[body]
			lock.Unlock()
			event("checked", "body", body, "times", times, "topic", m.Topic,
				"id", m.GetProperty(primitive.PropertyUniqueClientMessageIdKeyIndex))
			switch {
			case strings.HasSuffix(body, "twice") && times == 1:
				return primitive.UnknowState
			case strings.HasSuffix(body, "rollback"):
				return primitive.RollbackMessageState
			}
			return primitive.CommitMessageState
		},
	}
	all := newTally()
	c := all.start(s, s.consumer("a"), "a", consumer.MessageSelector{})
	send := func(p rocketmq.TransactionProducer, body string) {
		result, err := p.SendMessageInTransaction(context.Background(), s.message(body).WithKeys([]string{"k-" + body}))
		must(err)
		event("sent", "form", "transaction", "body", body, "id", result.MsgID)
	}
	gone := s.transactional(s.topic+"-producer", "gone", d)
	send(gone, "t-orphan")
	must(gone.Shutdown()) // another member of its group is asked
	p := s.transactional(s.topic+"-producer", "there", d)
	for i := 0; i < 15; i++ {
		send(p, fmt.Sprintf("t-%d-%s", i, verdicts[i%len(verdicts)]))
	}
	all.awaitSeen(10)
	await("checks of all that was left open", func() bool { return asked() >= 10 })
	time.Sleep(5 * time.Second) // what was rolled back must neither appear nor be asked for again
	must(c.Shutdown())
	must(p.Shutdown())
}

func loadTransactions(s scene) {
	l := newLoading(s, false)
	var checks atomic.Int64
	l.isWanted = func(body string) bool { return number(body)%2 == 0 }
	verdict := func(body string) primitive.LocalTransactionState {
		if l.isWanted(body) {
			return primitive.CommitMessageState
		}
		return primitive.RollbackMessageState
	}
	p := s.transactional(s.topic+"-transactional", "transactional", deciding{
		first: func(body string) primitive.LocalTransactionState {
			if number(body)%4 < 2 {
				return verdict(body)
			}
			return primitive.UnknowState
		},
		asked: func(m *primitive.MessageExt) primitive.LocalTransactionState {
			checks.Add(1)
			return verdict(string(m.Body))
		},
	})
	l.give = func(_ rocketmq.Producer, _ int, body string) (*primitive.SendResult, error) {
		result, err := p.SendMessageInTransaction(context.Background(), s.message(body))
		if err != nil {
			return nil, err
		}
		return result.SendResult, nil
	}
	l.isGivenBack = func(*primitive.MessageExt, int) bool { return false }
	l.more = func() []any { return []any{"checks", checks.Load()} }
	l.run()
}

func number(body string) int {
	n, err := strconv.Atoi(body)
	must(err)
	return n
}

// answering consumes requests and sends an answer for each.
func (s scene) answering(c rocketmq.PushConsumer, selector consumer.MessageSelector, told bool) {
	answers := s.producer("answering")
	must(c.Subscribe(s.topic, selector, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			if told {
				received("a", m)
			}
			if reply, err := replyTo(m); err != nil {
				event("unreplied", "why", err.Error())
			} else if _, err := answers.SendSync(context.Background(), reply); err != nil {
				event("unreplied", "why", err.Error())
			}
		}
		return consumer.ConsumeSuccess, nil
	}))
	must(c.Start())
}

// replyTo makes an answer; the library makes one without a body.
func replyTo(m *primitive.MessageExt) (*primitive.Message, error) {
	body := []byte("re: " + string(m.Body))
	reply, err := consumer.CreateReplyMessage(m, body)
	if err == nil {
		reply.Body = body
	}
	return reply, err
}

func requestReply(s scene) {
	const ttl = 10 * time.Second
	s.answering(s.consumer("a"), consumer.MessageSelector{Type: consumer.TAG, Expression: "Asked"}, true)
	p := s.producer("producer")
	// Only a client that has sent a heartbeat can be replied to. The library sends one to the brokers that it knows
	// after a second, and then every 30 seconds.
	await("a first answer", func() bool {
		_, err := p.Request(context.Background(), time.Second, s.message("first").WithTag("Asked"))
		return err == nil
	})
	request := func(body, tag string) *primitive.Message {
		event("sent", "form", tag, "body", body)
		return s.message(body).WithTag(tag)
	}
	tell := func(body string, answer *primitive.Message, err error) {
		if err != nil {
			event("unanswered", "body", body, "why", err.Error())
		} else {
			event("answered", "body", body, "answer", string(answer.Body))
		}
	}
	for i := 0; i < 5; i++ {
		body := fmt.Sprintf("sync-%d", i)
		answer, err := p.Request(context.Background(), ttl, request(body, "Asked"))
		tell(body, answer, err)
	}
	var pending sync.WaitGroup
	for i := 0; i < 5; i++ {
		body := fmt.Sprintf("async-%d", i)
		pending.Add(1)
		var once sync.Once // the library calls back twice
		must(p.RequestAsync(context.Background(), ttl, func(_ context.Context, answer *primitive.Message, err error) {
			once.Do(func() {
				tell(body, answer, err)
				pending.Done()
			})
		}, request(body, "Asked")))
	}
	pending.Wait()
	answer, err := p.Request(context.Background(), 2*time.Second, request("nobody", "NotAsked"))
	tell("nobody", answer, err)
}

func loadRequests(s scene) {
	l := newLoading(s, false)
	l.give = func(p rocketmq.Producer, _ int, body string) (*primitive.SendResult, error) {
		answer, err := p.Request(context.Background(), 3*time.Second, s.message(body))
		if err == nil && string(answer.Body) != "re: "+body {
			err = errors.New("another request's answer")
		}
		return &primitive.SendResult{Status: primitive.SendOK}, err
	}
	answers := s.producer("answering")
	l.isGivenBack = func(m *primitive.MessageExt, _ int) bool {
		reply, err := replyTo(m)
		must(err)
		answers.SendSync(context.Background(), reply) // nobody waits any more for one that cannot be sent now
		return false
	}
	l.run()
}

func (s scene) traced(group string) *primitive.TraceConfig {
	return &primitive.TraceConfig{GroupName: group, Access: primitive.Local, NamesrvAddrs: []string{s.namesrv},
		Credentials: clientKeys()}
}

// trace is of three messages; the one in the middle fails once. What was written is looked up from outside.
func trace(s scene) {
	var done atomic.Int32
	c := s.consumer("a", consumer.WithTrace(s.traced(s.group)))
	must(c.Subscribe(s.topic, consumer.MessageSelector{}, func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		m := messages[0]
		received("a", m)
		if m.ReconsumeTimes == 0 && string(m.Body) == "m-1" {
			concurrent, _ := primitive.GetConcurrentlyCtx(ctx)
			concurrent.DelayLevelWhenNextConsume = 1
			return consumer.ConsumeRetryLater, nil
		}
		done.Add(1)
		return consumer.ConsumeSuccess, nil
	}))
	must(c.Start())
	p := s.producer("producer", producer.WithTrace(s.traced(s.topic+"-producer")))
	for i := 0; i < 3; i++ {
		body := fmt.Sprintf("m-%d", i)
		result, err := p.SendSync(context.Background(), s.message(body).WithKeys([]string{fmt.Sprintf("k-%d", i)}))
		must(err)
		event("sent", "form", "sync", "body", body, "id", result.MsgID)
	}
	await("3 messages", func() bool { return done.Load() >= 3 })
	time.Sleep(5 * time.Second) // traces are sent now and then
	must(c.Shutdown())
	must(p.Shutdown())
}

func loadTrace(s scene) {
	l := newLoading(s, false)
	l.producing = []producer.Option{producer.WithTrace(s.traced(s.topic + "-producer"))}
	l.consuming = []consumer.Option{consumer.WithTrace(s.traced(s.group))}
	l.run()
}
