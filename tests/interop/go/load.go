package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

const (
	senders = 4
	pace    = 5 * time.Millisecond
)

// loading is a producer and a consumer with default settings at work while the cluster is disturbed.
type loading struct {
	sync.Mutex
	acknowledged map[string]bool
	received     map[string]int
	errors       map[string]int
	newest       time.Time
	longestGap   time.Duration
}

// load reports "running" when messages flow; reads a line from standard input; then reports what became of them.
func load(s scene) {
	l := &loading{acknowledged: map[string]bool{}, received: map[string]int{}, errors: map[string]int{}}
	c := s.consumer("a")
	must(c.Subscribe(s.topic, consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		l.Lock()
		defer l.Unlock()
		for _, m := range messages {
			l.received[string(m.Body)]++
		}
		return consumer.ConsumeSuccess, nil
	}))
	must(c.Start())
	p := s.producer("producer")
	var stopped atomic.Bool
	var numbers atomic.Int64
	var sending sync.WaitGroup
	for i := 0; i < senders; i++ {
		sending.Add(1)
		go func() {
			defer sending.Done()
			for !stopped.Load() {
				body := fmt.Sprintf("m-%d", numbers.Add(1))
				result, err := p.SendSync(context.Background(), s.message(body))
				l.note(body, result, err)
				time.Sleep(pace)
			}
		}()
	}
	await("messages to flow", func() bool {
		l.Lock()
		defer l.Unlock()
		return len(l.acknowledged) >= 200 && len(l.received) >= 200
	})
	l.Lock()
	l.longestGap = 0
	l.Unlock()
	event("running")
	bufio.NewReader(os.Stdin).ReadString('\n')
	stopped.Store(true)
	sending.Wait()
	l.Lock()
	// Nothing since the newest acknowledgement counts as well.
	l.longestGap = max(l.longestGap, time.Since(l.newest))
	l.Unlock()
	for end := time.Now().Add(patience); len(l.missing()) > 0 && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
	}
	missing := l.missing()
	l.Lock()
	defer l.Unlock()
	twice := 0
	for _, times := range l.received {
		if times > 1 {
			twice++
		}
	}
	event("load", "acknowledged", len(l.acknowledged), "errors", l.errors, "received", len(l.received),
		"missing", missing, "twice", twice, "longest_gap_ms", l.longestGap.Milliseconds())
}

func (l *loading) note(body string, result *primitive.SendResult, err error) {
	l.Lock()
	defer l.Unlock()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, body, err)
		l.errors[fmt.Sprintf("%T", err)]++
	case result.Status != primitive.SendOK:
		l.errors["not SEND_OK"]++
	default:
		l.acknowledged[body] = true
		now := time.Now()
		if !l.newest.IsZero() {
			l.longestGap = max(l.longestGap, now.Sub(l.newest))
		}
		l.newest = now
	}
}

func (l *loading) missing() []string {
	l.Lock()
	defer l.Unlock()
	missing := []string{}
	for body := range l.acknowledged {
		if l.received[body] == 0 {
			missing = append(missing, body)
		}
	}
	sort.Strings(missing)
	return missing
}
