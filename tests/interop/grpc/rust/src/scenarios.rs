//! What this client can do. It has no push consumer, so a simple one acknowledges each message at once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::Producer;
use serde_json::json;

use crate::scene::{event, now_ms, sleep, until, Outcome, Scene};

fn sent(body: &str, id: &str) {
    event("sent", json!({"body": body, "id": id}));
}

pub async fn send(scene: &Scene) -> Outcome {
    let producer = scene.producer().await?;
    for number in 0..20 {
        let body = format!("sync-{number}");
        let message = scene
            .message(&body)
            .set_tag("tag")
            .set_keys(vec![format!("key-{number}")])
            .set_properties(HashMap::from([("colour", "grün")]))
            .build()?;
        let receipt = producer.send(message).await?;
        sent(&body, receipt.message_id());
    }
    scene.consume_all("simple").await?;
    scene.until_received(20).await
}

/// Fails no message: what a simple consumer does not acknowledge stops the whole queue, not its message group.
pub async fn fifo(scene: &Scene) -> Outcome {
    event("lacking", json!({"calls": ["retry"]}));
    let producer = scene.producer().await?;
    for number in 0..80 {
        let body = format!("{}-{}", number % 8, number / 8);
        let message = scene.message(&body).set_message_group(format!("group-{}", number % 8)).build()?;
        sent(&body, producer.send(message).await?.message_id());
    }
    scene.consume_all("fifo").await?;
    scene.until_received(80).await?;
    sleep(2.0).await; // a message that is delivered once too often comes by then
    Ok(())
}

pub async fn filter(scene: &Scene) -> Outcome {
    scene.consume("tags", &scene.group, FilterExpression::new(FilterType::Tag, "AaTag || TagC")).await?;
    let sql = FilterExpression::new(FilterType::Sql, "number > 10 AND colour = 'rot'");
    scene.consume("sql", &format!("{}-sql", scene.topic), sql).await?;
    let producer = scene.producer().await?;
    for number in 0..30 {
        let tag = ["AaTag", "BBTag", "TagC"][number % 3]; // the first two have the same hash code
        let body = format!("m-{number}-{tag}");
        let number_text = number.to_string();
        let colour = if number % 2 == 0 { "rot" } else { "blau" };
        let message = scene
            .message(&body)
            .set_tag(tag)
            .set_properties(HashMap::from([("number", number_text.as_str()), ("colour", colour)]))
            .build()?;
        sent(&body, producer.send(message).await?.message_id());
    }
    scene.until_received(29).await?;
    sleep(2.0).await; // what passes a filter wrongly comes by then
    Ok(())
}

pub async fn delay(scene: &Scene) -> Outcome {
    scene.consume_all("delay").await?;
    let producer = scene.producer().await?;
    for number in 0..6 {
        let body = format!("d-{number}");
        let seconds = (now_ms() + 1000 + 600 * number) / 1000; // this client takes whole seconds
        let receipt = producer.send(scene.message(&body).set_delivery_timestamp(seconds).build()?).await?;
        event(
            "sent",
            json!({"body": body, "id": receipt.message_id(), "due": 1000 * seconds, "latest": 1000 * seconds + 2000}),
        );
    }
    scene.until_received(6).await?;
    sleep(1.0).await; // a message that is delivered twice comes by then
    Ok(())
}

/// Two each are committed, rolled back, and left to be asked for.
pub async fn transactions(scene: &Scene) -> Outcome {
    scene.consume_all("transactions").await?;
    let (producing, client) = scene.options();
    let check = Box::new(|_: String, message: rocketmq::model::message::MessageView| {
        let body = String::from_utf8_lossy(message.body()).to_string();
        event("checked", json!({"body": body, "id": message.message_id(), "topic": message.topic()}));
        if body.ends_with("commit") {
            TransactionResolution::COMMIT
        } else {
            TransactionResolution::ROLLBACK
        }
    });
    let mut producer = Producer::new_transaction_producer(producing, client, check)?;
    producer.start().await?;
    for number in 0..8 {
        let verdict = ["commit", "rollback", "late-commit", "late-rollback"][number % 4];
        let body = format!("t-{number}-{verdict}");
        let transaction = producer.send_transaction_message(scene.message(&body).enable_transaction().build()?).await?;
        sent(&body, transaction.message_id());
        match verdict {
            "commit" => transaction.commit().await?,
            "rollback" => transaction.rollback().await?,
            _ => {}
        }
    }
    scene.until_received(4).await?;
    sleep(8.0).await; // a message that was rolled back would come by then
    Ok(())
}

#[derive(Default)]
struct Sent {
    acknowledged: BTreeSet<String>,
    errors: BTreeMap<String, usize>,
    longest: Duration,
}

/// A producer and a consumer at work while servers are disturbed, until a line comes.
pub async fn load(scene: &Scene) -> Outcome {
    scene.consume_all("load").await?;
    let producer = scene.producer().await?;
    let (done, stopped) = (Arc::new(Mutex::new(Sent::default())), Arc::new(AtomicBool::new(false)));
    let sending = tokio::spawn({
        let (scene, done, stopped) = (scene.clone(), done.clone(), stopped.clone());
        async move {
            let mut newest = Instant::now();
            let mut number = 0;
            while !stopped.load(Ordering::Relaxed) {
                let body = number.to_string();
                let message = scene.message(&body).build().expect("a whole message");
                let outcome = producer.send(message).await;
                let pause = {
                    let mut done = done.lock().expect("not poisoned");
                    match outcome {
                        Ok(_) => {
                            done.acknowledged.insert(body);
                            done.longest = done.longest.max(newest.elapsed());
                            newest = Instant::now();
                            0.01
                        }
                        Err(error) => {
                            *done.errors.entry(error.message().to_string()).or_default() += 1;
                            0.1
                        }
                    }
                };
                sleep(pause).await;
                number += 1;
            }
        }
    });
    let flows = || done.lock().expect("not poisoned").acknowledged.len() >= 100 && scene.received().len() >= 100;
    until("messages to flow", flows).await?;
    done.lock().expect("not poisoned").longest = Duration::ZERO;
    event("running", json!({}));
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    stopped.store(true, Ordering::Relaxed);
    sending.await?;
    let missing = || {
        let received: BTreeSet<String> = scene.received().into_iter().collect();
        done.lock().expect("not poisoned").acknowledged.difference(&received).cloned().collect::<Vec<_>>()
    };
    let waited = until("what was acknowledged", || missing().is_empty()).await;
    if let Err(error) = waited {
        eprintln!("{error}");
    }
    scene.stop();
    let received = scene.received();
    let different = received.iter().collect::<BTreeSet<_>>().len();
    let missing = missing();
    let done = done.lock().expect("not poisoned");
    event(
        "load",
        json!({"acknowledged": done.acknowledged.len(), "errors": done.errors, "received": different,
            "missing": missing, "twice": received.len() - different, "longest_gap_ms": done.longest.as_millis() as u64}),
    );
    Ok(())
}
