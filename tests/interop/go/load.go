package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const (
	senders       = 4
	givenBackEach = 50
	pace          = 5 * time.Millisecond
	afterFailure  = 100 * time.Millisecond
)

// loading is a producer and consumers with default settings at work while the cluster is disturbed.
type loading struct {
	sync.Mutex
	scene        scene
	ordered      bool
	acknowledged map[string]bool
	received     map[string]int
	errors       map[string]int
	expected     [senders]int
	disorder     int
	newest       time.Time
	longestGap   time.Duration
	numbers      atomic.Int64
	stopped      atomic.Bool

	// give sends one message; its answer or error is noted.
	give func(p rocketmq.Producer, key int, body string) (*primitive.SendResult, error)
	// isGivenBack tells whether a message is to be consumed later once.
	isGivenBack func(m *primitive.MessageExt, number int) bool
	// isWanted tells whether a message is to arrive once it was taken, or must not.
	isWanted func(body string) bool
	// more tells further names and values at the end.
	more func() []any
	// producing and consuming are further options of the clients.
	producing []producer.Option
	consuming []consumer.Option
}

func newLoading(s scene, ordered bool) *loading {
	l := &loading{scene: s, ordered: ordered, acknowledged: map[string]bool{}, received: map[string]int{}, errors: map[string]int{}}
	l.give = func(p rocketmq.Producer, key int, body string) (*primitive.SendResult, error) {
		return p.SendSync(context.Background(), s.message(body).WithShardingKey(fmt.Sprint(key)))
	}
	l.isGivenBack = func(m *primitive.MessageExt, number int) bool {
		return number%givenBackEach == 0 && m.ReconsumeTimes == 0
	}
	l.isWanted = func(string) bool { return true }
	l.more = func() []any { return nil }
	return l
}

func loadConcurrently(s scene) { newLoading(s, false).run() }

func loadOrderly(s scene) { newLoading(s, true).run() }

// run reports "running" when messages flow; reads a line from standard input; then reports what became of them.
func (l *loading) run() {
	s := l.scene
	instances := []string{"a"}
	options := l.producing
	if l.ordered {
		instances = []string{"a", "b"}
		options = append(options, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	}
	for _, instance := range instances {
		c := s.consumer(instance, append(l.consuming, consumer.WithConsumerOrder(l.ordered))...)
		must(c.Subscribe(s.topic, consumer.MessageSelector{}, l.consume))
		must(c.Start())
	}
	p := s.producer("producer", options...)
	var sending sync.WaitGroup
	for key := 0; key < senders; key++ {
		sending.Add(1)
		go func(key int) {
			defer sending.Done()
			l.send(p, key)
		}(key)
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
	l.stopped.Store(true)
	sending.Wait()
	l.Lock()
	// Nothing since the newest acknowledgement counts as well.
	l.longestGap = max(l.longestGap, time.Since(l.newest))
	l.Unlock()
	for end := time.Now().Add(patience); len(l.missing()) > 0 && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
	}
	missing := l.missing()
	more := l.more()
	l.Lock()
	defer l.Unlock()
	wanted, twice, unwanted := 0, 0, []string{}
	for body := range l.acknowledged {
		if l.isWanted(body) {
			wanted++
		}
	}
	for body, times := range l.received {
		if !l.isWanted(body) {
			unwanted = append(unwanted, body)
		}
		if times > 1 {
			twice++
		}
	}
	event("load", append(more, "acknowledged", len(l.acknowledged), "wanted", wanted, "errors", l.errors,
		"received", len(l.received), "missing", missing, "unwanted", unwanted, "twice", twice,
		"longest_gap_ms", l.longestGap.Milliseconds(), "disorder", l.disorder)...)
}

func (l *loading) consume(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	for _, m := range messages { // one at a time by default
		var number int
		if fmt.Sscan(string(m.Body), &number); !l.ordered && l.isGivenBack(m, number) {
			concurrent, _ := primitive.GetConcurrentlyCtx(ctx)
			concurrent.DelayLevelWhenNextConsume = 1
			return consumer.ConsumeRetryLater, nil
		}
	}
	l.Lock()
	defer l.Unlock()
	for _, m := range messages {
		body := string(m.Body)
		var key, number int
		if l.ordered {
			fmt.Sscanf(body, "%d-%d", &key, &number)
			// What came before may come again; what has not come yet comes in its turn.
			if number > l.expected[key] {
				l.disorder++
			}
			l.expected[key] = max(l.expected[key], number+1)
		}
		l.received[body]++
	}
	return consumer.ConsumeSuccess, nil
}

func (l *loading) send(p rocketmq.Producer, key int) {
	for number := 0; !l.stopped.Load(); {
		body := fmt.Sprint(l.numbers.Add(1))
		if l.ordered {
			body = fmt.Sprintf("%d-%d", key, number)
		}
		result, err := l.give(p, key, body)
		if l.note(body, result, err) {
			number++
		} else {
			time.Sleep(afterFailure)
		}
		time.Sleep(pace)
	}
}

func (l *loading) note(body string, result *primitive.SendResult, err error) bool {
	l.Lock()
	defer l.Unlock()
	if err != nil {
		fmt.Fprintln(os.Stderr, body, err)
		name := fmt.Sprintf("%T", err)
		if strings.HasPrefix(err.Error(), "CODE: ") {
			name = strings.SplitN(err.Error(), ",", 2)[0]
		}
		l.errors[name]++
		return false
	}
	if result.Status != primitive.SendOK {
		l.errors["not SEND_OK"]++
		return false
	}
	l.acknowledged[body] = true
	now := time.Now()
	if !l.newest.IsZero() {
		l.longestGap = max(l.longestGap, now.Sub(l.newest))
	}
	l.newest = now
	return true
}

func (l *loading) missing() []string {
	l.Lock()
	defer l.Unlock()
	missing := []string{}
	for body := range l.acknowledged {
		if l.received[body] == 0 && l.isWanted(body) {
			missing = append(missing, body)
		}
	}
	sort.Strings(missing)
	return missing
}
