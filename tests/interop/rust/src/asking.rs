//! Consumers that ask for messages themselves, and looking messages up.

#![allow(deprecated)] // the old pull consumer

use std::collections::HashSet;

use rocketmq_client_rust::{ClientOptions, DefaultLitePullConsumer, DefaultMQPullConsumer, PullStatus};
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use rocketmq_model::common::message::message_ext::MessageExt;
use serde_json::json;

use crate::scene::{admin_keys, authority, client_keys, event, now_ms, received, sleep, text, Outcome, Scene};

const MESSAGES: usize = 100;

/// Every queue to its end, offsets stored and asked for again.
pub async fn pull(scene: &Scene) -> Outcome {
    let before = now_ms();
    let producer = scene.producer("producer").await?;
    scene.send(&producer, 0..MESSAGES).await?;
    let mut builder = DefaultMQPullConsumer::builder(scene.runtime.clone())
        .client_options(ClientOptions::legacy(scene.config("a")))
        .name_server_addr(scene.namesrv.clone())
        .consumer_group(scene.group.clone());
    if let Some(keys) = client_keys() {
        builder = builder.rpc_hook(keys);
    }
    let consumer = builder.build()?;
    consumer.start().await?;
    let queues = consumer.fetch_subscribe_message_queues(&scene.topic).await?;
    for queue in &queues {
        let mut offset: i64 = consumer.min_offset(queue).await?;
        loop {
            let result = consumer.pull(queue, "*", offset, 10).await?;
            if *result.pull_status() != PullStatus::Found {
                break;
            }
            for message in result.msg_found_list().unwrap_or_default() {
                received("a", message);
            }
            offset = result.next_begin_offset() as i64;
        }
        consumer.update_consume_offset(queue, offset).await?;
        event(
            "end",
            json!({
                "queue": queue.queue_id(), "offset": offset, "max": consumer.max_offset(queue).await?,
                "at start": consumer.search_offset(queue, before).await?,
                "at end": consumer.search_offset(queue, now_ms() + 60_000).await?,
            }),
        );
    }
    // The library never stores the offsets of this consumer.
    event("lacking", json!({"calls": ["stored"]}));
    let end = consumer.max_offset(&queues[0]).await?;
    let late = async {
        sleep(1.5).await;
        producer.send_to_queue(scene.message("late"), queues[0].clone()).await
    };
    let (woken, sent) = tokio::join!(consumer.pull_block_if_not_found(&queues[0], "*", end, 10), late);
    sent?;
    let woken = woken?;
    let body = woken.msg_found_list().unwrap_or_default().first().map(text);
    let status = if *woken.pull_status() == PullStatus::Found { "FOUND" } else { "not FOUND" };
    event("woken", json!({"status": status, "body": body}));
    Ok(())
}

/// Subscribed with two instances, then with queues of its own choice, seeking.
pub async fn lite_pull(scene: &Scene) -> Outcome {
    let before = now_ms();
    let producer = scene.producer("producer").await?;
    scene.send(&producer, 0..MESSAGES).await?;
    let mut shared = Vec::new();
    for instance in ["a", "b"] {
        let consumer = lite(scene, instance);
        consumer.subscribe_with_expression(&scene.topic, "*").await?;
        consumer.start().await?;
        shared.push(consumer);
    }
    let mut seen = HashSet::new();
    while seen.len() < MESSAGES {
        for consumer in &shared {
            for message in consumer.poll_with_timeout(100).await {
                received("shared", &message);
                seen.insert(text(&message));
            }
        }
    }
    for consumer in &shared {
        consumer.commit_all().await?;
    }
    sleep(1.0).await;
    for consumer in &shared {
        consumer.shutdown().await;
    }

    let own = lite(scene, "own");
    own.start().await?;
    let queues = own.fetch_message_queues(&scene.topic).await?;
    own.set_auto_commit(false).await;
    own.assign(queues.clone()).await?;
    for queue in &queues {
        event(
            "stored",
            json!({
                "queue": queue.queue_id(), "offset": own.committed(queue).await?,
                "at start": own.offset_for_timestamp(queue, before).await?,
            }),
        );
        own.seek(queue, 0).await?;
    }
    let mut again = HashSet::new();
    while again.len() < MESSAGES {
        for message in own.poll_with_timeout(100).await {
            received("own", &message);
            again.insert(text(&message));
        }
    }
    Ok(())
}

fn lite(scene: &Scene, instance: &str) -> DefaultLitePullConsumer {
    let mut builder = DefaultLitePullConsumer::builder(scene.runtime.clone())
        .client_options(ClientOptions::legacy(scene.config(instance)))
        .use_tls(authority().is_some())
        .name_server_addr(scene.namesrv.clone())
        .instance_name(format!("{}-{instance}", scene.topic))
        .consumer_group(scene.group.clone())
        .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset);
    if let Some(keys) = client_keys() {
        builder = builder.rpc_hook(keys);
    }
    builder.build().expect("all that it needs is set")
}

pub async fn lookup(scene: &Scene) -> Outcome {
    // Only administrators may look at messages by their place in the log.
    let mut producer = scene.producer_compressing_from("producer", 4096, admin_keys()).await?;
    let begin = now_ms() - 1000;
    let mut results = Vec::new();
    let queues = producer.fetch_publish_message_queues(&scene.topic).await?;
    for number in 0..20 {
        let mut message = scene.message(&format!("m-{number}"));
        message.set_keys(format!("k-{number} every").into());
        let queue = queues[number % queues.len()].clone();
        results.push(producer.send_to_queue(message, queue).await?.ok_or("sent without a result")?);
    }
    let end = now_ms() + 1000;
    let topic = scene.topic.as_str();
    // There is one call for unique ids. That nothing was found is told like a wrong argument.
    event("lacking", json!({"calls": ["by unique id", "by key, other time"]}));
    for (name, key, number, begin, end) in
        [("by key", "k-7", 32, begin, end), ("by shared key", "every", 64, begin, end)]
    {
        match producer.query_message(topic, key, number, begin, end).await {
            Ok(found) => call(name, Ok(bodies(found.message_list()))),
            // So does the client tell that there is none.
            Err(error) => call(name, Err(error.to_string())),
        }
    }
    let id = results[8].msg_id.clone().unwrap_or_default();
    let found = producer.view_message(topic, &id).await;
    call("by unique id, producer", found.map(|message| text(&message)).map_err(|error| error.to_string()));
    let id = results[9].offset_msg_id.clone().unwrap_or_default();
    let found = producer.view_message(topic, &id).await;
    let same = |message: &MessageExt| message.queue_offset() as u64 == results[9].queue_offset;
    call(
        "by offset id",
        found.map(|message| format!("{} {}", text(&message), same(&message))).map_err(|error| error.to_string()),
    );
    let queue = results[0].message_queue.clone().ok_or("no queue")?;
    let earliest = producer.earliest_msg_store_time(&queue).await? as u64;
    call("earliest", Ok((begin <= earliest && earliest <= end).to_string()));
    let ends = (producer.min_offset(&queue).await?, producer.max_offset(&queue).await?);
    call("offsets", Ok(format!("{} {}", ends.0, ends.1)));
    let times = (producer.search_offset(&queue, begin).await?, producer.search_offset(&queue, end).await?);
    call("offset by time", Ok(format!("{} {}", times.0, times.1)));
    Ok(())
}

fn bodies(messages: &[MessageExt]) -> String {
    format!("[{}]", messages.iter().map(text).collect::<Vec<_>>().join(", "))
}

fn call(name: &str, outcome: Result<String, String>) {
    match outcome {
        Ok(value) => event("call", json!({"name": name, "value": value})),
        Err(error) => event("call", json!({"name": name, "error": error})),
    }
}
