//! Consumers that messages are pushed to.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use rocketmq_client_rust::{
    DefaultMQProducer, MQPushConsumer, MessageQueueSelector, MessageSelector, SelectMessageQueueByHash,
};
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use rocketmq_model::common::message::message_single::Message;
use rocketmq_protocol::protocol::heartbeat::message_model::MessageModel;
use serde_json::json;

use crate::scene::{event, now_ms, received, sleep, text, until, Listener, Outcome, Scene, Tally, REBALANCED};

/// Two instances share the queues, one leaves, and a third goes on where all ended.
pub async fn push(scene: &Scene) -> Outcome {
    let all = Arc::new(Tally::default());
    let producer = scene.producer("producer").await?;
    let mut a = all.start(scene, "a", scene.consumer("a")).await?;
    let mut b = all.start(scene, "b", scene.consumer("b")).await?;
    tokio::time::sleep(REBALANCED).await;
    scene.send(&producer, 0..100).await?;
    all.until_seen(100).await?;
    sleep(1.0).await;
    b.shutdown().await;
    event("stopped", json!({"by": "b"}));
    tokio::time::sleep(REBALANCED).await;
    scene.send(&producer, 100..200).await?;
    all.until_seen(200).await?;
    sleep(1.0).await;
    a.shutdown().await;
    event("stopped", json!({"by": "a"}));
    scene.send(&producer, 200..220).await?;
    all.start(scene, "c", scene.consumer("c")).await?;
    all.until_seen(220).await?;
    sleep(1.0).await;
    Ok(())
}

/// Two instances read everything.
pub async fn broadcast(scene: &Scene) -> Outcome {
    let all = Arc::new(Tally::default());
    let producer = scene.producer("producer").await?;
    scene.send(&producer, 0..10).await?;
    let mut running = Vec::new();
    for instance in ["a", "b"] {
        let builder = scene.consumer(instance).message_model(MessageModel::Broadcasting);
        running.push(all.start(scene, instance, builder).await?);
    }
    scene.send(&producer, 10..40).await?;
    until("40 messages twice", || all.count() >= 80).await?;
    sleep(1.0).await;
    Ok(())
}

/// Messages of one key arrive in the order they were sent, while instances come and go.
pub async fn orderly(scene: &Scene) -> Outcome {
    let all = Arc::new(Tally::default());
    let producer = scene.producer("producer").await?;
    let mut running = Vec::new();
    for instance in ["a", "b"] {
        let mut consumer = scene.consumer(instance).build();
        consumer.subscribe(scene.topic.as_str(), "*").await?;
        consumer.register_message_listener_orderly(Listener(all.handle(instance)));
        consumer.start().await?;
        running.push(consumer);
    }
    tokio::time::sleep(REBALANCED).await;
    send_keys(scene, &producer, 0..20).await?;
    all.until_seen(160).await?;
    sleep(1.0).await;
    running[1].shutdown().await;
    send_keys(scene, &producer, 20..40).await?;
    all.until_seen(320).await?;
    sleep(0.5).await;
    Ok(())
}

async fn send_keys(scene: &Scene, producer: &DefaultMQProducer, numbers: std::ops::Range<usize>) -> Outcome {
    let by_hash = SelectMessageQueueByHash;
    for number in numbers {
        for key in 0..8i32 {
            let body = format!("{key}-{number}");
            let select = |queues: &[_], message: &Message, key: &i32| by_hash.select(queues, message, key);
            producer.send_with_selector(scene.message(&body), select, key).await?;
            event("sent", json!({"form": "by key", "body": body}));
        }
    }
    Ok(())
}

pub async fn tags(scene: &Scene) -> Outcome {
    let all = Arc::new(Tally::default());
    let producer = scene.producer("producer").await?;
    for number in 0..40 {
        // AaTag and BBTag have the same hash code: the broker lets both pass, the client does not.
        let tag = ["AaTag", "BBTag", "TagC", ""][number % 4];
        let body = format!("m-{number}-{tag}");
        let mut message = scene.message(&body);
        if !tag.is_empty() {
            message.set_tags(tag.into());
        }
        producer.send(message).await?;
        event("sent", json!({"form": "tagged", "body": body}));
    }
    let mut consumer = scene.consumer("a").build();
    consumer.subscribe(scene.topic.as_str(), "AaTag || TagC").await?;
    consumer.register_message_listener_concurrently(Listener(all.handle("a")));
    consumer.start().await?;
    all.until_seen(20).await?;
    sleep(1.0).await;
    Ok(())
}

pub async fn sql(scene: &Scene) -> Outcome {
    let all = Arc::new(Tally::default());
    let producer = scene.producer("producer").await?;
    for number in 0..40 {
        let body = format!("m-{number}");
        let mut builder = Message::builder()
            .topic(scene.topic.as_str())
            .tags(["even", "odd"][number % 2])
            .raw_property("number", number.to_string())?;
        if number % 4 != 0 {
            builder = builder.raw_property("colour", if number % 3 == 0 { "rot" } else { "grün" })?;
        }
        producer.send(builder.body_slice(body.as_bytes()).build_unchecked()).await?;
        event("sent", json!({"form": "with properties", "body": body}));
    }
    let expression = "(TAGS = 'odd' OR colour IS NULL) AND number BETWEEN 5 AND 35 AND NOT (colour = 'rot')\
                      \x20OR colour IN ('blau', 'grün') AND number = 2";
    let mut consumer = scene.consumer("a").build();
    consumer.subscribe_with_selector(&scene.topic, Some(MessageSelector::by_sql(expression))).await?;
    consumer.register_message_listener_concurrently(Listener(all.handle("a")));
    consumer.start().await?;
    until("messages", || all.count() > 0).await?;
    sleep(3.0).await;
    let mut bad = scene.consumer("bad").consumer_group(format!("{}-bad", scene.group)).build();
    bad.subscribe_with_selector(&scene.topic, Some(MessageSelector::by_sql("number > AND"))).await?;
    bad.register_message_listener_concurrently(Listener(all.handle("bad")));
    if let Err(error) = bad.start().await {
        event("refused", json!({"why": error.to_string()}));
    }
    Ok(())
}

/// Where a new group begins.
pub async fn start(scene: &Scene) -> Outcome {
    let all = Arc::new(Tally::default());
    let producer = scene.producer("producer").await?;
    scene.send(&producer, 0..8).await?;
    sleep(2.1).await;
    let pause = String::from_utf8(std::process::Command::new("date").arg("+%Y%m%d%H%M%S").output()?.stdout)?;
    scene.send(&producer, 8..16).await?;
    let mut running = Vec::new();
    for (instance, position) in [
        ("first", ConsumeFromWhere::ConsumeFromFirstOffset),
        ("last", ConsumeFromWhere::ConsumeFromLastOffset),
        ("timestamp", ConsumeFromWhere::ConsumeFromTimestamp),
        ("young", ConsumeFromWhere::ConsumeFromLastOffset),
    ] {
        let mut builder = scene
            .consumer(instance)
            .consumer_group(format!("{}-{instance}", scene.group))
            .consume_from_where(position)
            .consume_timestamp(pause.trim().to_string());
        if instance != "young" {
            builder = builder.message_model(MessageModel::Broadcasting);
        }
        running.push(all.start(scene, instance, builder).await?);
    }
    tokio::time::sleep(REBALANCED).await;
    scene.send(&producer, 16..24).await?;
    until("24 + 8 + 16 + 24 messages", || all.count() >= 72).await?;
    sleep(1.0).await;
    Ok(())
}

/// The context of this library's concurrent listener cannot be written to, so the broker chooses the delays.
pub async fn retry(scene: &Scene, ordered: bool) -> Outcome {
    let failures = Arc::new(AtomicUsize::new(0));
    let producer = scene.producer("producer").await?;
    for body in ["good-0", "bad-0", "good-1", "bad-1", "good-2"] {
        producer.send(scene.message(body)).await?;
        event("sent", json!({"form": "sync", "body": body}));
    }
    let counting = failures.clone();
    let listener = Listener(Arc::new(move |message| {
        received("a", message);
        let good = !text(message).starts_with("bad");
        if !good {
            counting.fetch_add(1, Ordering::SeqCst);
        }
        good
    }));
    let mut consumer = scene.consumer("a").max_reconsume_times(2).build();
    consumer.subscribe(scene.topic.as_str(), "*").await?;
    if ordered {
        consumer.register_message_listener_orderly(listener);
    } else {
        consumer.register_message_listener_concurrently(listener);
    }
    consumer.start().await?;
    until("two messages to fail three times", || failures.load(Ordering::SeqCst) >= 6).await?;
    sleep(3.0).await; // the last failure is still to be told to the broker
    Ok(())
}

/// The group is reset to a time by whoever runs the cluster.
pub async fn reset(scene: &Scene) -> Outcome {
    let all = Arc::new(Tally::default());
    let producer = scene.producer("producer").await?;
    scene.send(&producer, 0..20).await?;
    sleep(0.1).await;
    event("between", json!({"at": now_ms()}));
    sleep(0.1).await;
    scene.send(&producer, 20..40).await?;
    let _running = all.start(scene, "a", scene.consumer("a")).await?;
    all.until_seen(40).await?;
    sleep(6.0).await; // what it has read is stored every five seconds
    event("consumed", json!({}));
    until("20 messages once more", || all.count() >= 60).await?;
    sleep(2.0).await;
    Ok(())
}
