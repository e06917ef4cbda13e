//! Messages that wait, that are decided on later, that are answered and that are traced; consumers that pop.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use rocketmq_client_rust::{
    ClientResult, DefaultMQProducer, DefaultMQPushConsumerBuilder, LocalTransactionState, MQPushConsumer, MessageUtil,
    TransactionListener, TransactionMQProducer,
};
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_model::common::message::message_single::Message;
use rocketmq_model::common::message::MessageTrait;
use rocketmq_model::result::SendResult;
use serde_json::json;

use crate::scene::{
    client_keys, event, now_ms, received, sleep, text, unique_id, until, Listener, Outcome, Scene, Tally,
};

/// What the levels 1 to 3 mean, by default.
pub const LEVELS_MS: [u64; 3] = [1_000, 5_000, 10_000];
const INVISIBLE_MS: u64 = 10_000;
const DAYS_41_SECONDS: u64 = 41 * 86_400;

pub async fn delays(scene: &Scene) -> Outcome {
    let all = Arc::new(Tally::default());
    let _consumer = all.start(scene, "a", scene.consumer("a")).await?;
    let producer = scene.producer("producer").await?;
    for number in 0..9 {
        let level = number % LEVELS_MS.len();
        let mut message = scene.message(&format!("d-{number}"));
        message.set_delay_time_level(level as i32 + 1);
        send(&producer, &format!("level {}", level + 1), message, LEVELS_MS[level]).await?;
    }
    all.until_seen(9).await?;
    sleep(1.0).await;
    Ok(())
}

/// Sends it and tells from when on it may be seen, and by when it should be.
async fn send(producer: &DefaultMQProducer, form: &str, message: Message, wait_ms: u64) -> ClientResult<SendResult> {
    let body = String::from_utf8_lossy(message.body_slice()).into_owned();
    let due = now_ms() + wait_ms;
    let result = producer.send(message).await?.expect("waited for");
    let id = result.msg_id.as_ref().map(|id| id.to_string());
    event("sent", json!({"form": form, "body": body, "id": id, "due": due, "latest": now_ms() + wait_ms}));
    Ok(result)
}

pub async fn timers(scene: &Scene) -> Outcome {
    let all = Arc::new(Tally::default());
    let _consumer = all.start(scene, "a", scene.consumer("a")).await?;
    let producer = scene.producer("producer").await?;
    for number in 0..3 {
        let mut seconds = scene.message(&format!("seconds-{number}"));
        seconds.set_delay_time_sec(1 + number);
        send(&producer, "seconds", seconds, 1000 * (1 + number)).await?;
        let mut milliseconds = scene.message(&format!("milliseconds-{number}"));
        milliseconds.set_delay_time_ms(300 + 777 * number);
        send(&producer, "milliseconds", milliseconds, 300 + 777 * number).await?;
        let mut time = scene.message(&format!("time-{number}"));
        let wait = 400 + 1111 * number;
        time.set_deliver_time_ms(now_ms() + wait);
        send(&producer, "time", time, wait - 50).await?; // the time was fixed before the send began
    }
    let mut past = scene.message("past");
    past.set_deliver_time_ms(now_ms() - 1000);
    send(&producer, "past", past, 0).await?;
    let mut distant = scene.message("distant");
    distant.set_delay_time_sec(DAYS_41_SECONDS);
    if let Err(error) = producer.send(distant).await {
        event("refused", json!({"what": "distant", "code": error.broker_response_code(), "why": error.to_string()}));
    }
    all.until_seen(10).await?;
    sleep(1.0).await;
    Ok(())
}

pub async fn recall(scene: &Scene) -> Outcome {
    let all = Arc::new(Tally::default());
    let _consumer = all.start(scene, "a", scene.consumer("a")).await?;
    let producer = scene.producer("producer").await?;
    let mut handles = Vec::new();
    for number in 0..6 {
        let mut message = scene.message(&format!("r-{number}"));
        message.set_delay_time_sec(6);
        let result = send(&producer, "seconds", message, 6_000).await?;
        handles.push(result.recall_handle.ok_or("no recall handle")?);
    }
    for number in [0, 2, 4] {
        let id = producer.recall_message(scene.topic.as_str(), handles[number].as_str()).await?;
        event("recalled", json!({"body": format!("r-{number}"), "id": id}));
    }
    outcome("again", producer.recall_message(scene.topic.as_str(), handles[0].as_str()).await);
    // A handle is base64 of words, the last of which is the id of the message.
    let forged = format!("{}{}", &handles[1][..handles[1].len() - 8], &handles[3][handles[3].len() - 8..]);
    outcome("forged", producer.recall_message(scene.topic.as_str(), forged).await);
    all.until_seen(3).await?;
    sleep(2.0).await;
    outcome("delivered", producer.recall_message(scene.topic.as_str(), handles[1].as_str()).await);
    Ok(())
}

fn outcome(what: &str, result: ClientResult<String>) {
    match result {
        Ok(id) => event("recall", json!({"what": what, "value": id})),
        Err(error) => {
            event("recall", json!({"what": what, "code": error.broker_response_code(), "why": error.to_string()}))
        }
    }
}

/// Tells of each body what is to become of its transaction, at once and when asked.
pub struct Deciding {
    pub first: Box<dyn Fn(&str) -> LocalTransactionState + Send + Sync>,
    pub asked: Box<dyn Fn(&MessageExt) -> LocalTransactionState + Send + Sync>,
}

impl TransactionListener for Deciding {
    fn execute_local_transaction(
        &self,
        message: &dyn MessageTrait,
        _: Option<&(dyn Any + Send + Sync)>,
    ) -> LocalTransactionState {
        (self.first)(&body_of(message))
    }

    fn check_local_transaction(&self, message: &MessageExt) -> LocalTransactionState {
        (self.asked)(message)
    }
}

pub fn body_of(message: &dyn MessageTrait) -> String {
    message.get_body().map(|body| String::from_utf8_lossy(body).into_owned()).unwrap_or_default()
}

pub async fn transactional(scene: &Scene, instance: &str, deciding: Deciding) -> ClientResult<TransactionMQProducer> {
    let mut builder = TransactionMQProducer::builder(scene.runtime.clone())
        .client_config(scene.config(instance))
        .producer_group(format!("{}-producer", scene.topic))
        .transaction_listener(deciding);
    if let Some(keys) = client_keys() {
        builder = builder.rpc_hook(keys);
    }
    let mut producer = builder.build();
    producer.start().await?;
    Ok(producer)
}

pub async fn transactions(scene: &Scene) -> Outcome {
    let verdicts = ["commit", "rollback", "late-commit", "late-rollback", "twice"];
    let checks: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
    let deciding = || {
        let noting = checks.clone();
        Deciding {
            first: Box::new(|body| match body {
                late if late.contains("-late-") => LocalTransactionState::Unknown,
                body if body.ends_with("-commit") => LocalTransactionState::CommitMessage,
                body if body.ends_with("-rollback") => LocalTransactionState::RollbackMessage,
                _ => LocalTransactionState::Unknown,
            }),
            asked: Box::new(move |message| {
                let body = text(message);
                let times = *noting.lock().unwrap().entry(body.clone()).and_modify(|times| *times += 1).or_insert(1);
                let topic = message.topic().as_str();
                event("checked", json!({"body": body, "times": times, "topic": topic, "id": unique_id(message)}));
                match body {
                    twice if twice.ends_with("twice") && times == 1 => LocalTransactionState::Unknown,
                    body if body.ends_with("rollback") => LocalTransactionState::RollbackMessage,
                    _ => LocalTransactionState::CommitMessage,
                }
            }),
        }
    };
    let all = Arc::new(Tally::default());
    let _consumer = all.start(scene, "a", scene.consumer("a")).await?;
    let mut gone = transactional(scene, "gone", deciding()).await?;
    send_half(scene, &gone, "t-orphan").await?;
    gone.shutdown().await; // another member of its group is asked
    let producer = transactional(scene, "there", deciding()).await?;
    for number in 0..15 {
        send_half(scene, &producer, &format!("t-{number}-{}", verdicts[number % verdicts.len()])).await?;
    }
    all.until_seen(10).await?;
    until("checks of all that was left open", || checks.lock().unwrap().len() >= 10).await?;
    sleep(5.0).await; // what was rolled back must neither appear nor be asked for again
    Ok(())
}

async fn send_half(scene: &Scene, producer: &TransactionMQProducer, body: &str) -> Outcome {
    let result = producer.send_message_in_transaction(scene.message(body), None::<()>).await?;
    let id = result.send_result.and_then(|result| result.msg_id.as_ref().map(|id| id.to_string()));
    event("sent", json!({"form": "transaction", "body": body, "id": id}));
    Ok(())
}

/// One that pops, once an operator has ordered it.
pub fn popping(scene: &Scene, instance: &str) -> DefaultMQPushConsumerBuilder {
    scene.consumer(instance).client_rebalance(false).pop_invisible_time(INVISIBLE_MS)
}

pub async fn pop(scene: &Scene) -> Outcome {
    let seen: Arc<Mutex<HashSet<String>>> = Arc::default();
    let again: Arc<Mutex<usize>> = Arc::default();
    let mut running = Vec::new();
    for instance in ["a", "b"] {
        let mut consumer = popping(scene, instance).build();
        consumer.subscribe(scene.topic.as_str(), "*").await?;
        let (noting, counting) = (seen.clone(), again.clone());
        consumer.register_message_listener_concurrently(Listener(Arc::new(move |message| {
            received(instance, message);
            let body = text(message);
            noting.lock().unwrap().insert(body.clone());
            if message.reconsume_times() > 0 {
                *counting.lock().unwrap() += 1;
            } else if body.starts_with("bad") {
                return false;
            } else if body.starts_with("slow") {
                std::thread::sleep(std::time::Duration::from_millis(INVISIBLE_MS + 1_000));
            }
            true
        })));
        consumer.start().await?;
        running.push(consumer);
    }
    let producer = scene.producer("producer").await?;
    send_to_pop(scene, &producer, 0..100).await?;
    until("100 messages", || seen.lock().unwrap().len() >= 100).await?;
    until("10 messages again", || *again.lock().unwrap() >= 10).await?;
    running.pop().expect("two are there").shutdown().await;
    send_to_pop(scene, &producer, 100..150).await?;
    until("150 messages", || seen.lock().unwrap().len() >= 150).await?;
    until("16 messages again", || *again.lock().unwrap() >= 16).await?;
    sleep(INVISIBLE_MS as f64 / 1000.0 + 5.0).await; // what was acknowledged must not come again
    Ok(())
}

async fn send_to_pop(scene: &Scene, producer: &DefaultMQProducer, numbers: std::ops::Range<usize>) -> Outcome {
    for number in numbers {
        let kind = match number % 20 {
            3 => "bad",
            7 => "slow",
            _ => "good",
        };
        let body = format!("{kind}-{number}");
        producer.send(scene.message(&body)).await?;
        event("sent", json!({"form": "sync", "body": body}));
    }
    Ok(())
}

pub fn reply_to(message: &MessageExt) -> ClientResult<Message> {
    MessageUtil::create_reply_message(message.message_inner(), format!("re: {}", text(message)).as_bytes())
}

pub async fn request_reply(scene: &Scene) -> Outcome {
    let _answering = answering(scene, "Asked", true).await?;
    let producer = scene.producer("producer").await?;
    for number in 0..5 {
        let body = format!("sync-{number}");
        let answer = producer.request(request(scene, &body, "Asked"), 10_000).await?;
        event("answered", json!({"body": body, "answer": body_of(answer.as_ref())}));
    }
    let answers: Arc<Mutex<usize>> = Arc::default();
    for number in 0..5 {
        let body = format!("async-{number}");
        let (told, counting) = (body.clone(), answers.clone());
        let note = move |answer: Option<&dyn MessageTrait>, error: Option<&rocketmq_client_rust::ClientError>| {
            match (answer, error) {
                (Some(answer), _) => event("answered", json!({"body": told, "answer": body_of(answer)})),
                (None, Some(error)) => event("unanswered", json!({"body": told, "why": error.to_string()})),
                (None, None) => return, // so does the library tell that the request was sent
            }
            *counting.lock().unwrap() += 1;
        };
        producer.request_with_callback(request(scene, &body, "Asked"), note, 10_000).await?;
    }
    until("five answers", || *answers.lock().unwrap() >= 5).await?;
    if let Err(error) = producer.request(request(scene, "nobody", "NotAsked"), 2_000).await {
        event("unanswered", json!({"body": "nobody", "why": error.to_string()}));
    }
    Ok(())
}

fn request(scene: &Scene, body: &str, tag: &str) -> Message {
    event("sent", json!({"form": tag, "body": body}));
    Message::builder().topic(scene.topic.as_str()).tags(tag).body_slice(body.as_bytes()).build_unchecked()
}

/// A consumer that answers all that comes, by a producer of its own; both are returned to keep them.
async fn answering(scene: &Scene, tag: &str, told: bool) -> Result<Box<dyn Any>, Box<dyn std::error::Error>> {
    let (replies, handle) = replying(scene, told).await?;
    let mut consumer = scene.consumer("a").build();
    consumer.subscribe(scene.topic.as_str(), tag).await?;
    consumer.register_message_listener_concurrently(Listener(handle));
    consumer.start().await?;
    Ok(Box::new((replies, consumer)))
}

/// What sends an answer for each message that it is given.
pub async fn replying(
    scene: &Scene,
    told: bool,
) -> Result<(tokio::task::JoinHandle<()>, crate::scene::Handle), Box<dyn std::error::Error>> {
    let producer = scene.producer("answering").await?;
    let (give, mut take) = tokio::sync::mpsc::unbounded_channel::<Message>();
    let sending = tokio::spawn(async move {
        while let Some(reply) = take.recv().await {
            if let Err(error) = producer.send(reply).await {
                eprintln!("unreplied: {error}"); // nobody waits any more for one that cannot be sent now
            }
        }
    });
    let handle: crate::scene::Handle = Arc::new(move |message| {
        if told {
            received("a", message);
        }
        match reply_to(message) {
            Ok(reply) => give.send(reply).is_ok(),
            Err(error) => {
                event("unreplied", json!({"why": error.to_string()}));
                true
            }
        }
    });
    Ok((sending, handle))
}

/// A scene whose clients write down what becomes of their messages.
pub fn traced(scene: &Scene) -> Scene {
    Scene {
        runtime: scene.runtime.clone(),
        namesrv: scene.namesrv.clone(),
        topic: scene.topic.clone(),
        group: scene.group.clone(),
        traced: true,
    }
}

/// Three messages; the one in the middle fails once. What was written is looked up from outside.
pub async fn trace(scene: &Scene) -> Outcome {
    let scene = traced(scene);
    let done: Arc<Mutex<usize>> = Arc::default();
    let mut consumer = scene.consumer("a").build();
    consumer.subscribe(scene.topic.as_str(), "*").await?;
    let counting = done.clone();
    consumer.register_message_listener_concurrently(Listener(Arc::new(move |message| {
        received("a", message);
        if message.reconsume_times() == 0 && text(message) == "m-1" {
            return false;
        }
        *counting.lock().unwrap() += 1;
        true
    })));
    consumer.start().await?;
    let producer = scene.producer("producer").await?;
    for number in 0..3 {
        let body = format!("m-{number}");
        let message = Message::builder()
            .topic(scene.topic.as_str())
            .keys(vec![format!("k-{number}")])
            .body_slice(body.as_bytes())
            .build_unchecked();
        let id = producer.send(message).await?.and_then(|result| result.msg_id.as_ref().map(|id| id.to_string()));
        event("sent", json!({"form": "sync", "body": body, "id": id}));
    }
    until("3 messages", || *done.lock().unwrap() >= 3).await?;
    sleep(7.0).await; // traces are sent now and then
    Ok(())
}
