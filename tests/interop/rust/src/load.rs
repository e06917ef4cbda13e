//! A producer and consumers with default settings at work while the cluster is disturbed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rocketmq_client_rust::{
    ClientResult, DefaultMQProducer, MQPushConsumer, MessageQueueSelector, SelectMessageQueueByHash,
};
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_model::common::message::message_single::Message;
use rocketmq_model::result::{SendResult, SendStatus};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::scene::{event, sleep, text, until, Listener, Outcome, Scene};

const SENDERS: usize = 4;
const GIVEN_BACK_EACH: usize = 50;

#[derive(Default)]
struct Books {
    acknowledged: HashSet<String>,
    times: HashMap<String, usize>,
    errors: BTreeMap<String, usize>,
    expected: [usize; SENDERS],
    disorder: usize,
    newest: Option<Instant>,
    longest_gap: Duration,
}

#[derive(Default)]
struct Loading {
    books: Mutex<Books>,
    numbers: AtomicUsize,
    stopped: AtomicBool,
}

/// Reports "running" when messages flow; reads a line from standard input; then reports what became of them.
pub async fn load(scene: &Scene, ordered: bool) -> Outcome {
    let loading = Arc::new(Loading::default());
    let mut running = Vec::new();
    for instance in if ordered { vec!["a", "b"] } else { vec!["a"] } {
        let mut consumer = scene.consumer(instance).build();
        consumer.subscribe(scene.topic.as_str(), "*").await?;
        let noting = loading.clone();
        if ordered {
            consumer.register_message_listener_orderly(Listener(Arc::new(move |message| noting.in_order(message))));
        } else {
            consumer.register_message_listener_concurrently(Listener(Arc::new(move |message| noting.any(message))));
        }
        consumer.start().await?;
        running.push(consumer);
    }
    let producer = scene.producer("producer").await?;
    let sending = async {
        tokio::join!(
            loading.send(scene, &producer, 0, ordered),
            loading.send(scene, &producer, 1, ordered),
            loading.send(scene, &producer, 2, ordered),
            loading.send(scene, &producer, 3, ordered),
        );
    };
    let commanding = async {
        let flowing = || {
            let books = loading.books.lock().unwrap();
            books.acknowledged.len() >= 200 && books.times.len() >= 200
        };
        let outcome = until("messages to flow", flowing).await;
        if outcome.is_ok() {
            loading.books.lock().unwrap().longest_gap = Duration::ZERO;
            event("running", json!({}));
            BufReader::new(tokio::io::stdin()).read_line(&mut String::new()).await?;
        }
        loading.stopped.store(true, Ordering::SeqCst);
        outcome
    };
    tokio::join!(sending, commanding).1?;
    let newest = loading.books.lock().unwrap().newest.map_or(Duration::ZERO, |newest| newest.elapsed());
    let end = Instant::now() + Duration::from_secs(60);
    while !loading.missing().is_empty() && Instant::now() < end {
        sleep(0.05).await;
    }
    let missing = loading.missing();
    let books = loading.books.lock().unwrap();
    event(
        "load",
        json!({
            "acknowledged": books.acknowledged.len(), "errors": books.errors, "received": books.times.len(),
            "missing": missing, "twice": books.times.values().filter(|times| **times > 1).count(),
            // Nothing since the newest acknowledgement counts as well.
            "longest_gap_ms": books.longest_gap.max(newest).as_millis() as u64, "disorder": books.disorder,
        }),
    );
    Ok(())
}

impl Loading {
    fn any(&self, message: &MessageExt) -> bool {
        let body = text(message);
        if message.reconsume_times() == 0 && body.parse::<usize>().is_ok_and(|number| number % GIVEN_BACK_EACH == 0) {
            return false;
        }
        *self.books.lock().unwrap().times.entry(body).or_default() += 1;
        true
    }

    fn in_order(&self, message: &MessageExt) -> bool {
        let body = text(message);
        let mut books = self.books.lock().unwrap();
        let (key, number) = body.split_once('-').expect("sent as KEY-NUMBER");
        let (key, number): (usize, usize) = (key.parse().unwrap(), number.parse().unwrap());
        // What came before may come again; what has not come yet comes in its turn.
        if number > books.expected[key] {
            books.disorder += 1;
        }
        books.expected[key] = books.expected[key].max(number + 1);
        *books.times.entry(body).or_default() += 1;
        true
    }

    async fn send(&self, scene: &Scene, producer: &DefaultMQProducer, key: usize, ordered: bool) {
        let mut number = 0;
        while !self.stopped.load(Ordering::SeqCst) {
            let body = match ordered {
                true => format!("{key}-{number}"),
                false => (self.numbers.fetch_add(1, Ordering::SeqCst) + 1).to_string(),
            };
            let result = if ordered {
                let select =
                    |queues: &[_], message: &Message, key: &i32| SelectMessageQueueByHash.select(queues, message, key);
                producer.send_with_selector(scene.message(&body), select, key as i32).await
            } else {
                producer.send(scene.message(&body)).await
            };
            if self.note(body, result) {
                number += 1;
            } else {
                sleep(0.1).await;
            }
            sleep(0.005).await;
        }
    }

    fn note(&self, body: String, result: ClientResult<Option<SendResult>>) -> bool {
        let mut books = self.books.lock().unwrap();
        let error = match result {
            Ok(Some(result)) if result.send_status == SendStatus::SendOk => {
                books.acknowledged.insert(body);
                let now = Instant::now();
                let gap = books.newest.map_or(Duration::ZERO, |newest| now - newest);
                books.longest_gap = books.longest_gap.max(gap);
                books.newest = Some(now);
                return true;
            }
            Ok(_) => "not SEND_OK".to_string(),
            Err(error) => {
                eprintln!("{body} {error}");
                error.to_string().chars().take_while(|letter| !letter.is_ascii_digit()).take(40).collect()
            }
        };
        *books.errors.entry(error).or_default() += 1;
        false
    }

    fn missing(&self) -> Vec<String> {
        let books = self.books.lock().unwrap();
        let mut missing: Vec<String> =
            books.acknowledged.iter().filter(|body| !books.times.contains_key(*body)).cloned().collect();
        missing.sort();
        missing
    }
}
