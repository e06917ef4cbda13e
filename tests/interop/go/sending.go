package main

import (
	"context"
	"hash/crc32"
	"math/rand"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// sending is every way to send a message.
func sending(s scene) {
	ctx := context.Background()
	p := s.producer("producer")
	for _, name := range []string{"0", "1", "2"} {
		sync1(s, p, "sync", decorated(s, "sync-"+name))
	}
	var pending sync.WaitGroup
	for i := 0; i < 10; i++ {
		m := decorated(s, "async-"+string(rune('a'+i)))
		pending.Add(1)
		must(p.SendAsync(ctx, func(_ context.Context, result *primitive.SendResult, err error) {
			if err != nil {
				event("unsent", "form", "async", "why", err.Error())
			} else {
				report("async", m, result)
			}
			pending.Done()
		}, m))
	}
	pending.Wait()
	for _, name := range []string{"0", "1", "2"} {
		m := decorated(s, "one-way-"+name)
		must(p.SendOneWay(ctx, m))
		report("one-way", m, nil)
	}
	batch := make([]*primitive.Message, 10)
	for i := range batch {
		batch[i] = decorated(s, "batch-"+string(rune('a'+i)))
	}
	result, err := p.SendSync(ctx, batch...)
	must(err)
	offsetIds := strings.Split(result.OffsetMsgID, ",")
	for i, m := range batch {
		// This library tells no unique ids of messages in a batch: it gives them none.
		report("batch", m, &primitive.SendResult{Status: result.Status, MessageQueue: result.MessageQueue,
			OffsetMsgID: offsetIds[i], QueueOffset: result.QueueOffset + int64(i)})
	}
	delayed := s.message("delayed")
	delayed.WithDelayTimeLevel(1)
	sync1(s, p, "delayed", delayed)
	must(p.Shutdown())

	manual := s.producer("manual", producer.WithQueueSelector(producer.NewManualQueueSelector()))
	direct := s.message("direct")
	direct.Queue = &primitive.MessageQueue{Topic: s.topic, BrokerName: brokerOf(s), QueueId: 1}
	sync1(s, manual, "direct", direct)
	must(manual.Shutdown())
	hashing := s.producer("hashing", producer.WithQueueSelector(producer.NewHashQueueSelector()))
	for _, name := range []string{"0", "1", "2"} {
		sync1(s, hashing, "sharded", s.message("sharded-"+name).WithShardingKey("order-7"))
	}
	must(hashing.Shutdown())

	// Random bytes would grow by compression.
	noise := make([]byte, 4*1024*1024)
	rand.New(rand.NewSource(1)).Read(noise)
	plain := s.producer("plain", producer.WithSendMsgTimeout(30*time.Second), producer.WithCompressMsgBodyOverHowmuch(len(noise)+1))
	sync1(s, plain, "largest", primitive.NewMessage(s.topic, noise))
	must(plain.Shutdown())
	compressing := s.producer("compressing")
	sync1(s, compressing, "compressed", s.message(strings.Repeat("ZLIB grüßt 😀 ", 2000)))
	must(compressing.Shutdown())
	read(s)
}

// read tells what the consumer makes of what the producers sent.
func read(s scene) {
	var lock sync.Mutex
	bodies := map[uint32]bool{}
	c := s.consumer("reading")
	must(c.Subscribe(s.topic, consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		for _, m := range messages {
			crc := crc32.ChecksumIEEE(m.Body)
			bodies[crc] = true
			event("read", "crc", crc, "id", m.MsgId, "queue", m.Queue.QueueId, "offset", m.QueueOffset,
				"tags", optional(m.GetTags()), "keys", optional(m.GetKeys()),
				"colour", optional(m.GetProperty("colour")), "face", optional(m.GetProperty("face")))
		}
		return consumer.ConsumeSuccess, nil
	}))
	must(c.Start())
	await("all messages", func() bool {
		lock.Lock()
		defer lock.Unlock()
		return len(bodies) >= int(reported.Load())
	})
	must(c.Shutdown())
}

var reported atomic.Int32

func brokerOf(s scene) string {
	p := s.producer("asking")
	defer p.Shutdown()
	result, err := p.SendSync(context.Background(), decorated(s, "asking"))
	must(err)
	report("sync", decorated(s, "asking"), result)
	return result.MessageQueue.BrokerName
}

func sync1(s scene, p rocketmq.Producer, form string, m *primitive.Message) {
	result, err := p.SendSync(context.Background(), m)
	if err != nil {
		event("unsent", "form", form, "why", err.Error())
		return
	}
	report(form, m, result)
}

func decorated(s scene, body string) *primitive.Message {
	m := s.message(body)
	m.WithTag("TagA").WithKeys([]string{"k-" + body, "schlüssel"})
	m.WithProperty("colour", "grün")
	m.WithProperty("face", "😀 \"quoted\" {} \\ \t")
	return m
}

func report(form string, m *primitive.Message, result *primitive.SendResult) {
	fields := []any{"form", form, "crc", crc32.ChecksumIEEE(m.Body), "length", len(m.Body),
		"tags", optional(m.GetTags()), "keys", optional(m.GetKeys()),
		"colour", optional(m.GetProperty("colour")), "face", optional(m.GetProperty("face")),
		"at", time.Now().UnixMilli()}
	if result != nil {
		status := "not SEND_OK"
		if result.Status == primitive.SendOK {
			status = "SEND_OK"
		}
		if result.MsgID == "" {
			fields = append(fields, "untold", []string{"id"})
		} else {
			fields = append(fields, "id", result.MsgID)
		}
		fields = append(fields, "offset_id", result.OffsetMsgID, "status", status,
			"queue", result.MessageQueue.QueueId, "offset", result.QueueOffset)
	}
	reported.Add(1)
	event("sent", fields...)
}

func optional(text string) any {
	if text == "" {
		return nil
	}
	return strings.TrimRight(text, " ")
}
