package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

// receive is one receive; what it fails with is told, unless there was no message.
func receive(c rmq.SimpleConsumer) []*rmq.MessageView {
	messages, err := c.Receive(context.Background(), 16, invisible)
	if err != nil {
		if status, ok := rmq.AsErrRpcStatus(err); !ok || status.GetCode() != 40401 {
			event("retried", fields{"why": err.Error()})
			time.Sleep(500 * time.Millisecond)
		}
		return nil
	}
	return messages
}

func send(s *scene) {
	p := s.producer()
	var answered sync.WaitGroup
	for _, form := range []string{"sync", "async"} {
		for number := 0; number < 10; number++ {
			m := s.message(fmt.Sprintf("%s-%d", form, number))
			m.SetTag("tag")
			m.SetKeys(fmt.Sprintf("key-%d", number))
			m.AddProperty("colour", "grün")
			if form == "sync" {
				s.send(p, m, fields{"form": form})
				continue
			}
			answered.Add(1)
			p.SendAsync(context.Background(), m, func(_ context.Context, receipts []*rmq.SendReceipt, err error) {
				defer answered.Done()
				if err != nil {
					event("unsent", fields{"why": err.Error()})
					return
				}
				sent(string(m.Body), receipts, fields{"form": "async"})
			})
		}
	}
	answered.Wait()
	c := s.simple()
	await("20 messages", func() bool {
		for _, m := range receive(c) {
			s.note("simple", m)
			must(c.Ack(context.Background(), m))
		}
		return s.count() >= 20
	})
	c.GracefulStop()
	p.GracefulStop()
}

// simple: of 20 messages one is left alone, one is given back, one is kept for longer than it was asked for.
func simple(s *scene) {
	p := s.producer()
	for number := 0; number < 20; number++ {
		kind := "good"
		if number < 3 {
			kind = []string{"left", "back", "kept"}[number]
		}
		s.send(p, s.message(fmt.Sprintf("%s-%d", kind, number)), nil)
	}
	c, seen := s.simple(), map[string]bool{}
	var kept *rmq.MessageView
	var due time.Time
	await("each message", func() bool {
		for _, m := range receive(c) {
			body := s.note("simple", m)
			first := !seen[body]
			seen[body] = true
			switch {
			case first && strings.HasPrefix(body, "back"):
				must(c.ChangeInvisibleDuration(m, invisible/2))
			case first && strings.HasPrefix(body, "kept"):
				must(c.ChangeInvisibleDuration(m, 3*invisible))
				kept, due = m, time.Now().Add(2*invisible)
			case !first || strings.HasPrefix(body, "good"):
				must(c.Ack(context.Background(), m))
			}
		}
		if kept != nil && time.Now().After(due) {
			must(c.Ack(context.Background(), kept))
			event("acknowledged", fields{"body": string(kept.GetBody())})
			kept = nil
		}
		return s.count() >= 22 && kept == nil
	})
	// What was acknowledged late must not come again after its longer time, either.
	for end := time.Now().Add(invisible * 3 / 2); time.Now().Before(end); {
		for _, m := range receive(c) {
			s.note("simple", m)
		}
	}
	c.GracefulStop()
	p.GracefulStop()
}

// push: two share 60 messages, of which some fail always; they are dead after two attempts.
func push(s *scene) {
	fails := func(body string) bool { return strings.HasPrefix(body, "bad") }
	a, b := s.push("a", s.group, rmq.SUB_ALL, fails), s.push("b", s.group, rmq.SUB_ALL, fails)
	p := s.producer()
	for number := 0; number < 60; number++ {
		kind := "good"
		if number%20 == 0 {
			kind = "bad"
		}
		s.send(p, s.message(fmt.Sprintf("%s-%d", kind, number)), nil)
	}
	s.awaitReceived(63)
	event("delivered", fields{})
	bufio.NewReader(os.Stdin).ReadString('\n') // told when the dead letters are there
	a.GracefulStop()
	b.GracefulStop()
	p.GracefulStop()
}

// fifo fails no message: the client goes on with the message group while it tries one of it again.
func fifo(s *scene) {
	event("lacking", fields{"calls": []string{"retry"}})
	p := s.producer()
	for number := 0; number < 80; number++ {
		m := s.message(fmt.Sprintf("%d-%d", number%8, number/8))
		m.SetMessageGroup(fmt.Sprintf("group-%d", number%8))
		s.send(p, m, nil)
	}
	c := s.push("fifo", s.group, rmq.SUB_ALL, never)
	s.awaitReceived(80)
	time.Sleep(2 * time.Second) // a message that is delivered once too often comes by then
	c.GracefulStop()
	p.GracefulStop()
}

func filter(s *scene) {
	tags := s.push("tags", s.group, rmq.NewFilterExpression("AaTag || TagC"), never)
	sql := s.push("sql", s.topic+"-sql",
		rmq.NewFilterExpressionWithType("number > 10 AND colour = 'rot'", rmq.SQL92), never)
	p := s.producer()
	for number := 0; number < 30; number++ {
		tag := []string{"AaTag", "BBTag", "TagC"}[number%3] // the first two have the same hash code
		m := s.message(fmt.Sprintf("m-%d-%s", number, tag))
		m.SetTag(tag)
		m.AddProperty("number", fmt.Sprint(number))
		m.AddProperty("colour", []string{"rot", "blau"}[number%2])
		s.send(p, m, nil)
	}
	s.awaitReceived(29)
	time.Sleep(2 * time.Second) // what passes a filter wrongly comes by then
	tags.GracefulStop()
	sql.GracefulStop()
	p.GracefulStop()
}

func delay(s *scene) {
	c, p := s.push("delay", s.group, rmq.SUB_ALL, never), s.producer()
	for number := 0; number < 6; number++ {
		due := time.Now().Add(time.Second + time.Duration(number)*600*time.Millisecond)
		m := s.message(fmt.Sprintf("d-%d", number))
		m.SetDelayTimestamp(due)
		// This client sends whole seconds.
		s.send(p, m, fields{"due": 1000 * due.Unix(), "latest": due.UnixMilli() + 1000})
	}
	s.awaitReceived(6)
	time.Sleep(time.Second) // a message that is delivered twice comes by then
	c.GracefulStop()
	p.GracefulStop()
}

// transactions: two each are committed, rolled back, and left to be asked for.
func transactions(s *scene) {
	c := s.push("transactions", s.group, rmq.SUB_ALL, never)
	p := s.producer(rmq.WithTransactionChecker(&rmq.TransactionChecker{
		Check: func(m *rmq.MessageView) rmq.TransactionResolution {
			body := string(m.GetBody())
			event("checked", fields{"body": body, "id": m.GetMessageId(), "topic": m.GetTopic()})
			if strings.HasSuffix(body, "commit") {
				return rmq.COMMIT
			}
			return rmq.ROLLBACK
		}}))
	for number := 0; number < 8; number++ {
		verdict := []string{"commit", "rollback", "late-commit", "late-rollback"}[number%4]
		m, transaction := s.message(fmt.Sprintf("t-%d-%s", number, verdict)), p.BeginTransaction()
		receipts, err := p.SendWithTransaction(context.Background(), m, transaction)
		must(err)
		sent(string(m.Body), receipts, nil)
		switch verdict {
		case "commit":
			must(transaction.Commit())
		case "rollback":
			must(transaction.RollBack())
		}
	}
	s.awaitReceived(4)
	time.Sleep(8 * time.Second) // a message that was rolled back would come by then
	c.GracefulStop()
	p.GracefulStop()
}

// load is a producer and a push consumer at work while servers are disturbed, until a line comes.
func load(s *scene) {
	var lock sync.Mutex
	acknowledged, errors := map[string]bool{}, map[string]int{}
	newest, longest := time.Now(), time.Duration(0)
	var stopped atomic.Bool
	c, p := s.push("load", s.group, rmq.SUB_ALL, never), s.producer()
	var sending sync.WaitGroup
	sending.Add(1)
	go func() {
		defer sending.Done()
		for number := 0; !stopped.Load(); number++ {
			_, err := p.Send(context.Background(), s.message(fmt.Sprint(number)))
			lock.Lock()
			pause := 10 * time.Millisecond
			if err != nil {
				errors[err.Error()]++
				pause = 100 * time.Millisecond
			} else {
				acknowledged[fmt.Sprint(number)] = true
				longest, newest = max(longest, time.Since(newest)), time.Now()
			}
			lock.Unlock()
			time.Sleep(pause)
		}
	}()
	await("messages to flow", func() bool {
		lock.Lock()
		defer lock.Unlock()
		return len(acknowledged) >= 100 && s.count() >= 100
	})
	lock.Lock()
	longest = 0
	lock.Unlock()
	event("running", fields{})
	bufio.NewReader(os.Stdin).ReadString('\n')
	stopped.Store(true)
	sending.Wait()
	missing, different := []string{}, map[string]bool{}
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		s.lock.Lock()
		for _, body := range s.received {
			different[body] = true
		}
		s.lock.Unlock()
		missing = missing[:0]
		for body := range acknowledged {
			if !different[body] {
				missing = append(missing, body)
			}
		}
		if len(missing) == 0 || time.Now().After(end) {
			break
		}
	}
	slices.Sort(missing)
	event("load", fields{"acknowledged": len(acknowledged), "errors": errors, "received": len(different),
		"missing": missing, "twice": s.count() - len(different), "longest_gap_ms": longest.Milliseconds()})
	c.GracefulStop()
	p.GracefulStop()
}
