package main

import (
	"context"
	"fmt"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const pulled = 100

// pull reads every queue to its end, stores the offsets and has another instance ask for them.
func pull(s scene) {
	p := s.producer("producer", producer.WithQueueSelector(producer.NewManualQueueSelector()))
	tool := s.admin()
	queues, err := tool.FetchPublishMessageQueues(context.Background(), s.topic)
	must(err)
	for i := 0; i < pulled; i++ {
		s.sendTo(p, queues[i%len(queues)], fmt.Sprintf("m-%d", i))
	}
	a := s.puller("a", s.group)
	// When the library is given its queues, which it does not tell, it reads their offsets and forgets what was set before.
	time.Sleep(3 * time.Second)
	for _, queue := range queues {
		offset := int64(0)
		for {
			result, err := a.PullFrom(context.Background(), queue, offset, 10)
			must(err)
			for _, m := range result.GetMessageExts() {
				received("a", m)
			}
			offset = result.NextBeginOffset
			if offset >= result.MaxOffset { // a pull from there would wait for what comes next
				event("end", "queue", queue.QueueId, "offset", offset, "max", result.MaxOffset)
				break
			}
		}
		must(a.UpdateOffset(queue, offset))
	}
	must(a.PersistOffset(context.Background(), s.topic))
	time.Sleep(time.Second)
	b := s.puller("b", s.group)
	for _, queue := range queues {
		offset, err := b.CurrentOffset(queue)
		must(err)
		event("stored", "queue", queue.QueueId, "offset", offset)
	}
	go func() {
		time.Sleep(1500 * time.Millisecond)
		_, err := p.SendSync(context.Background(), s.queued(queues[0], "late"))
		must(err)
	}()
	woken, err := b.PullFrom(context.Background(), queues[0], pulled/int64(len(queues)), 10)
	must(err)
	status, body := "not FOUND", ""
	if woken.Status == primitive.PullFound {
		status, body = "FOUND", string(woken.GetMessageExts()[0].Body)
	}
	event("woken", "status", status, "body", body)
}

func (s scene) puller(instance, group string) rocketmq.PullConsumer {
	c, err := rocketmq.NewPullConsumer(
		consumer.WithNameServer(primitive.NamesrvAddr{s.namesrv}),
		consumer.WithGroupName(group),
		consumer.WithInstance(instance),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithCredentials(clientKeys()),
	)
	must(err)
	must(c.Subscribe(s.topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}))
	must(c.Start())
	return c
}

func (s scene) queued(queue *primitive.MessageQueue, body string) *primitive.Message {
	m := s.message(body)
	m.Queue = queue
	return m
}

func (s scene) sendTo(p rocketmq.Producer, queue *primitive.MessageQueue, body string) {
	_, err := p.SendSync(context.Background(), s.queued(queue, body))
	must(err)
	event("sent", "form", "direct", "body", body)
}

func (s scene) admin() admin.Admin {
	tool, err := admin.NewAdmin(
		admin.WithResolver(primitive.NewPassthroughResolver([]string{s.namesrv})),
		admin.WithCredentials(adminKeys()))
	must(err)
	return tool
}

// notOffered are calls of the Java client's administration that this library does not have.
var notOffered = []string{
	"clusterInfo", "topicConfig", "topicsOfCluster", "allTopicConfig", "createGroup", "group", "topicStats",
	"consumeStats", "consumeStatsOfGroup", "consumerConnection", "producerConnection", "consumerRunningInfo",
	"consumerStatus", "whoConsumes", "consumeTimeSpan", "runtimeStats", "brokerConfig", "consumeDirectly", "kv",
	"cloneGroupOffset", "deleteGroup",
}

func calls(s scene) {
	ctx := context.Background()
	event("lacking", "calls", notOffered)
	tool := s.admin()
	fresh := s.topic + "-made"
	// The library does not tell who leads, but the id of a stored message does.
	sent, err := s.producer("producer").SendSync(ctx, s.message("m-0"))
	must(err)
	id, err := primitive.UnmarshalMsgID([]byte(sent.OffsetMsgID))
	must(err)
	leader := fmt.Sprintf("%s:%d", id.Addr, id.Port)
	seen := newTally()
	seen.start(s, s.consumer("a"), "a", consumer.MessageSelector{})
	seen.awaitSeen(1)
	call("createTopic", func() (any, error) {
		err := tool.CreateTopic(ctx, admin.WithTopicCreate(fresh), admin.WithBrokerAddrCreate(leader),
			admin.WithReadQueueNums(3), admin.WithWriteQueueNums(2))
		time.Sleep(500 * time.Millisecond) // the broker tells the name servers
		return "", err
	})
	call("route", func() (any, error) {
		queues, err := tool.FetchPublishMessageQueues(ctx, fresh)
		return fmt.Sprintf("3 %d 6", len(queues)), err // those that can be written to
	})
	listed := func() (any, error) {
		topics, err := tool.FetchAllTopicList(ctx)
		if err != nil {
			return nil, err
		}
		for _, topic := range topics.TopicList {
			if topic == fresh {
				return "true", nil
			}
		}
		return "false", nil
	}
	call("topicList", listed)
	call("allGroups", func() (any, error) {
		groups, err := tool.GetAllSubscriptionGroup(ctx, leader, 3*time.Second)
		if err != nil {
			return nil, err
		}
		_, known := groups.SubscriptionGroupTable[s.group]
		return fmt.Sprint(known), nil
	})
	call("deleteTopic", func() (any, error) {
		if err := tool.DeleteTopic(ctx, admin.WithTopicDelete(fresh), admin.WithBrokerAddrDelete(leader)); err != nil {
			return nil, err
		}
		time.Sleep(500 * time.Millisecond)
		return listed()
	})
}

// call reports the value that a call returns, or its error.
func call(name string, made func() (any, error)) {
	value, err := made()
	if err != nil {
		event("call", "name", name, "error", err.Error())
	} else {
		event("call", "name", name, "value", value)
	}
}
