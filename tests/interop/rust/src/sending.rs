//! Every way to send a message.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use rocketmq_client_rust::{ClientError, MQPushConsumer, MessageQueueSelector, SelectMessageQueueByHash};
use rocketmq_model::common::message::message_single::Message;
use rocketmq_model::result::SendResult;
use serde_json::{json, Value};

use crate::scene::{client_keys, event, property, unique_id, until, Listener, Outcome, Scene};

pub async fn send(scene: &Scene) -> Outcome {
    let mut producer = scene.producer("producer").await?;
    let mut crcs = Vec::new();
    for name in 0..3 {
        let message = decorated(scene, &format!("sync-{name}"));
        crcs.push(report("sync", &message, producer.send(message.clone()).await?.as_ref(), None));
    }
    let answers = Arc::new(Mutex::new(Vec::new()));
    for name in 0..10 {
        let message = decorated(scene, &format!("async-{name}"));
        let (told, sent) = (answers.clone(), message.clone());
        let note = move |result: Option<&SendResult>, error: Option<&ClientError>| {
            let crc = match error {
                Some(error) => unsent("async", error),
                None => report("async", &sent, result, None),
            };
            told.lock().unwrap().push(crc);
        };
        producer.send_with_callback(message, note).await?;
    }
    until("ten answers", || answers.lock().unwrap().len() >= 10).await?;
    crcs.extend(answers.lock().unwrap().iter());
    for name in 0..3 {
        let message = decorated(scene, &format!("one-way-{name}"));
        producer.send_oneway(message.clone()).await?;
        crcs.push(report("one-way", &message, None, None));
    }
    let batch: Vec<Message> = (0..10).map(|name| decorated(scene, &format!("batch-{name}"))).collect();
    let result = producer.send_batch(batch.clone()).await?;
    for (place, message) in batch.iter().enumerate() {
        crcs.push(report("batch", message, Some(&result), Some(place)));
    }
    let queues = producer.fetch_publish_message_queues(&scene.topic).await?;
    let direct = decorated(scene, "direct");
    let result = producer.send_to_queue(direct.clone(), queues[1].clone()).await?;
    crcs.push(report("direct", &direct, result.as_ref(), None));
    let by_hash = SelectMessageQueueByHash;
    for name in 0..3 {
        let message = decorated(scene, &format!("sharded-{name}"));
        let select = |queues: &[_], message: &Message, key: &&str| by_hash.select(queues, message, key);
        let result = producer.send_with_selector(message.clone(), select, "order-7").await?;
        crcs.push(report("sharded", &message, result.as_ref(), None));
    }
    let mut delayed = scene.message("delayed");
    delayed.set_delay_time_level(1);
    let result = producer.send(delayed.clone()).await?;
    crcs.push(report("delayed", &delayed, result.as_ref(), None));
    let long = scene.message(&"ZLIB grüßt 😀 ".repeat(2000));
    let result = producer.send(long.clone()).await?;
    crcs.push(report("compressed", &long, result.as_ref(), None));
    crcs.push(largest(scene).await?);
    read(scene, crcs.into_iter().collect()).await?;
    producer.shutdown().await;
    Ok(())
}

async fn largest(scene: &Scene) -> Result<u32, Box<dyn std::error::Error>> {
    // Noise would grow by compression.
    let plain = scene.producer_compressing_from("plain", u32::MAX, client_keys()).await?;
    let mut state = 1u32;
    let mut noise = vec![0; 4 * 1024 * 1024];
    for byte in &mut noise {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (state >> 24) as u8;
    }
    let message = Message::builder().topic(scene.topic.as_str()).body(noise).build_unchecked();
    Ok(match plain.send_with_timeout(message.clone(), 30_000).await {
        Ok(result) => report("largest", &message, result.as_ref(), None),
        Err(error) => unsent("largest", &error),
    })
}

/// What the consumer makes of what the producer sent.
async fn read(scene: &Scene, wanted: HashSet<u32>) -> Outcome {
    let seen = Arc::new(Mutex::new(HashSet::new()));
    let mut consumer = scene.consumer("reading").build();
    let noting = seen.clone();
    consumer.subscribe(scene.topic.as_str(), "*").await?;
    consumer.register_message_listener_concurrently(Listener(Arc::new(move |message| {
        let crc = crc32(&message.body().unwrap_or_default());
        noting.lock().unwrap().insert(crc);
        event(
            "read",
            json!({
                "crc": crc, "id": unique_id(message), "queue": message.queue_id(),
                "offset": message.queue_offset(), "tags": property(message, "TAGS"), "keys": property(message, "KEYS"),
                "colour": property(message, "colour"), "face": property(message, "face"),
            }),
        );
        true
    })));
    consumer.start().await?;
    until("all messages", || seen.lock().unwrap().is_superset(&wanted)).await
}

fn decorated(scene: &Scene, body: &str) -> Message {
    Message::builder()
        .topic(scene.topic.as_str())
        .tags("TagA")
        .keys(vec![format!("k-{body}"), "schlüssel".into()])
        .raw_property("colour", "grün")
        .and_then(|builder| builder.raw_property("face", "😀 \"quoted\" {} \\ \t"))
        .expect("names of one's own")
        .body_slice(body.as_bytes())
        .build_unchecked()
}

fn unsent(form: &str, error: &dyn std::fmt::Display) -> u32 {
    event("unsent", json!({"form": form, "why": error.to_string()}));
    0
}

/// Returns the checksum of the body.
fn report(form: &str, message: &Message, result: Option<&SendResult>, place: Option<usize>) -> u32 {
    let crc = crc32(message.body_slice());
    let mut fields = json!({
        "form": form, "crc": crc, "length": message.body_slice().len(), "tags": message.tags(),
        "keys": message.keys().map(|keys| keys.join(" ")), "colour": message.property("colour"),
        "face": message.property("face"),
    });
    if let Some(result) = result {
        let part = |text: &str| text.split(',').nth(place.unwrap_or(0)).map(str::to_string);
        fields["id"] = json!(result.msg_id.as_ref().and_then(|ids| part(ids)));
        fields["offset_id"] = json!(result.offset_msg_id.as_ref().and_then(|ids| part(ids)));
        fields["status"] = Value::String(result.send_status.to_string());
        fields["queue"] = json!(result.message_queue.as_ref().map(|queue| queue.queue_id()));
        fields["offset"] = json!(result.queue_offset + place.unwrap_or(0) as u64);
    }
    event("sent", fields);
    crc
}

fn crc32(bytes: &[u8]) -> u32 {
    let table: Vec<u32> =
        (0..256u32).map(|n| (0..8).fold(n, |n, _| if n & 1 == 1 { (n >> 1) ^ 0xedb8_8320 } else { n >> 1 })).collect();
    !bytes.iter().fold(!0, |crc, byte| (crc >> 8) ^ table[((crc ^ u32::from(*byte)) & 255) as usize])
}
