//! A producer and consumers with default settings at work while the cluster is disturbed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rocketmq_client_rust::{
    ClientResult, DefaultMQProducer, LocalTransactionState, MQPushConsumer, MessageQueueSelector,
    SelectMessageQueueByHash, TransactionMQProducer,
};
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_model::common::message::message_single::Message;
use rocketmq_model::common::message::MessageTrait;
use rocketmq_model::result::{SendResult, SendStatus};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::scene::{event, now_ms, sleep, text, until, Handle, Listener, Outcome, Scene};
use crate::special::{body_of, popping, replying, transactional, Deciding, LEVELS_MS};

const SENDERS: usize = 4;
const GIVEN_BACK_EACH: usize = 50;

/// What the messages are; the README tells of each.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Plain,
    Ordered,
    Delays,
    Timers,
    Transactions,
    Pop,
    Requests,
}

#[derive(Default)]
struct Books {
    acknowledged: HashSet<String>,
    times: HashMap<String, usize>,
    errors: BTreeMap<String, usize>,
    expected: [usize; SENDERS],
    disorder: usize,
    newest: Option<Instant>,
    longest_gap: Duration,
    due: HashMap<String, u64>,
    early: usize,
    latest_ms: u64,
    recalled: HashSet<String>,
    unrecalled: usize,
    checks: usize,
}

struct Loading {
    kind: Kind,
    books: Mutex<Books>,
    numbers: AtomicUsize,
    stopped: AtomicBool,
}

/// Reports "running" when messages flow; reads a line from standard input; then reports what became of them.
pub async fn load(scene: &Scene, kind: Kind) -> Outcome {
    let ordered = kind == Kind::Ordered;
    let loading = Arc::new(Loading {
        kind,
        books: Mutex::default(),
        numbers: AtomicUsize::default(),
        stopped: AtomicBool::default(),
    });
    let reply: Option<Handle> = match kind {
        Kind::Requests => Some(replying(scene, false).await?.1),
        _ => None,
    };
    let mut running = Vec::new();
    for instance in if ordered { vec!["a", "b"] } else { vec!["a"] } {
        let builder = if kind == Kind::Pop { popping(scene, instance) } else { scene.consumer(instance) };
        let mut consumer = builder.build();
        consumer.subscribe(scene.topic.as_str(), "*").await?;
        let noting = loading.clone();
        if ordered {
            consumer.register_message_listener_orderly(Listener(Arc::new(move |message| noting.in_order(message))));
        } else {
            let reply = reply.clone();
            consumer.register_message_listener_concurrently(Listener(Arc::new(move |message| {
                reply.as_ref().is_none_or(|reply| reply(message)) && noting.any(message)
            })));
        }
        consumer.start().await?;
        running.push(consumer);
    }
    let producer = Sender {
        plain: scene.producer("producer").await?,
        transactional: match kind {
            Kind::Transactions => Some(transactional(scene, "transactional", loading.clone().deciding()).await?),
            _ => None,
        },
    };
    let sending = async {
        tokio::join!(
            loading.send(scene, &producer, 0),
            loading.send(scene, &producer, 1),
            loading.send(scene, &producer, 2),
            loading.send(scene, &producer, 3),
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
    sleep(0.5).await; // what must not arrive may be on its way
    let missing = loading.missing();
    let books = loading.books.lock().unwrap();
    let mut fields = json!({
            "acknowledged": books.acknowledged.len(), "errors": books.errors, "received": books.times.len(),
            "wanted": books.acknowledged.iter().filter(|body| kind.wants(&books, body)).count(),
            "unwanted": books.times.keys().filter(|body| !kind.wants(&books, body)).collect::<Vec<_>>(),
            "missing": missing, "twice": books.times.values().filter(|times| **times > 1).count(),
            // Nothing since the newest acknowledgement counts as well.
            "longest_gap_ms": books.longest_gap.max(newest).as_millis() as u64, "disorder": books.disorder,
    });
    match kind {
        Kind::Delays | Kind::Timers => {
            fields["early"] = json!(books.early);
            fields["latest_ms"] = json!(books.latest_ms);
            fields["recalled"] = json!(books.recalled.len());
            fields["unrecalled"] = json!(books.unrecalled);
        }
        Kind::Transactions => fields["checks"] = json!(books.checks),
        _ => (),
    }
    event("load", fields);
    Ok(())
}

impl Kind {
    /// Whether a message is to arrive once it was taken, or must not.
    fn wants(self, books: &Books, body: &str) -> bool {
        match self {
            Kind::Timers => !books.recalled.contains(body),
            Kind::Transactions => number(body) % 2 == 0,
            _ => true,
        }
    }
}

fn number(body: &str) -> usize {
    body.parse().expect("sent as a number")
}

struct Sender {
    plain: DefaultMQProducer,
    transactional: Option<TransactionMQProducer>,
}

impl Loading {
    fn any(&self, message: &MessageExt) -> bool {
        let body = text(message);
        let is_given_back = matches!(self.kind, Kind::Plain | Kind::Pop);
        if is_given_back && message.reconsume_times() == 0 && number(&body) % GIVEN_BACK_EACH == 0 {
            return false;
        }
        let mut books = self.books.lock().unwrap();
        if let Some(due) = books.due.get(&body).copied() {
            let now = now_ms();
            books.early += usize::from(now < due);
            books.latest_ms = books.latest_ms.max(now.saturating_sub(due));
        }
        *books.times.entry(body).or_default() += 1;
        true
    }

    /// A quarter each is committed and rolled back at once and when asked.
    fn deciding(self: Arc<Self>) -> Deciding {
        let verdict = |body: &str| match number(body) % 2 {
            0 => LocalTransactionState::CommitMessage,
            _ => LocalTransactionState::RollbackMessage,
        };
        Deciding {
            first: Box::new(move |body| match number(body) % 4 {
                0 | 1 => verdict(body),
                _ => LocalTransactionState::Unknown,
            }),
            asked: Box::new(move |message| {
                self.books.lock().unwrap().checks += 1;
                verdict(&text(message))
            }),
        }
    }

    async fn give(&self, scene: &Scene, sender: &Sender, key: usize, body: &str) -> ClientResult<Option<SendResult>> {
        let mut message = scene.message(body);
        match self.kind {
            Kind::Ordered => {
                let select =
                    |queues: &[_], message: &Message, key: &i32| SelectMessageQueueByHash.select(queues, message, key);
                sender.plain.send_with_selector(message, select, key as i32).await
            }
            Kind::Delays => {
                message.set_delay_time_level(1);
                self.give_later(sender, message, body, LEVELS_MS[0]).await
            }
            Kind::Timers if number(body) % 3 == 0 => {
                message.set_delay_time_level(1);
                self.give_later(sender, message, body, LEVELS_MS[0]).await
            }
            Kind::Timers => {
                let wait = if number(body) % 3 == 1 { 1_500 } else { 4_000 };
                message.set_delay_time_ms(wait);
                let result = self.give_later(sender, message, body, wait).await?;
                if number(body) % 6 == 2 {
                    return Ok(self.recall(scene, sender, body, result).await);
                }
                Ok(result)
            }
            Kind::Transactions => {
                let producer = sender.transactional.as_ref().expect("made for them");
                Ok(producer.send_message_in_transaction(message, None::<()>).await?.send_result)
            }
            Kind::Requests => {
                let answer = sender.plain.request(message, 3_000).await?;
                let is_right = body_of(answer.as_ref()) == format!("re: {body}");
                Ok(is_right.then(SendResult::default))
            }
            Kind::Plain | Kind::Pop => sender.plain.send(message).await,
        }
    }

    async fn give_later(
        &self,
        sender: &Sender,
        message: Message,
        body: &str,
        wait_ms: u64,
    ) -> ClientResult<Option<SendResult>> {
        self.books.lock().unwrap().due.insert(body.to_string(), now_ms() + wait_ms);
        sender.plain.send(message).await
    }

    /// The message's answer if it was called back; otherwise it may be and it may be not.
    async fn recall(
        &self,
        scene: &Scene,
        sender: &Sender,
        body: &str,
        result: Option<SendResult>,
    ) -> Option<SendResult> {
        let handle = result.as_ref()?.recall_handle.clone()?;
        let done = sender.plain.recall_message(scene.topic.as_str(), handle.as_str()).await;
        let mut books = self.books.lock().unwrap();
        if done.is_err() {
            books.unrecalled += 1;
            return None;
        }
        books.recalled.insert(body.to_string());
        result
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

    async fn send(&self, scene: &Scene, producer: &Sender, key: usize) {
        let mut number = 0;
        while !self.stopped.load(Ordering::SeqCst) {
            let body = match self.kind {
                Kind::Ordered => format!("{key}-{number}"),
                _ => (self.numbers.fetch_add(1, Ordering::SeqCst) + 1).to_string(),
            };
            let result = self.give(scene, producer, key, &body).await;
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
        let is_missing = |body: &&String| !books.times.contains_key(*body) && self.kind.wants(&books, body);
        let mut missing: Vec<String> = books.acknowledged.iter().filter(is_missing).cloned().collect();
        missing.sort();
        missing
    }
}
