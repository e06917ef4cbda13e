//! The topic and the group of one scenario, clients for them, and what they have received.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ErrorKind;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};

pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const PATIENCE: Duration = Duration::from_secs(100);
/// The shortest time that the proxy allows with a receive.
const INVISIBLE: Duration = Duration::from_secs(10);

/// Reports one line.
pub fn event(name: &str, fields: Value) {
    let mut line = format!("{{\"event\":{}", json!(name));
    for (key, value) in fields.as_object().expect("fields are an object") {
        line += &format!(",{}:{value}", json!(key));
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}}}").expect("somebody reads");
    out.flush().expect("somebody reads");
}

pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as i64
}

pub async fn sleep(seconds: f64) {
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
}

pub async fn until(what: &str, condition: impl Fn() -> bool) -> Outcome {
    let end = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        if tokio::time::Instant::now() > end {
            return Err(format!("waited {PATIENCE:?} for {what}").into());
        }
        sleep(0.02).await;
    }
    Ok(())
}

#[derive(Clone)]
pub struct Scene {
    address: String,
    pub topic: String,
    pub group: String,
    received: Arc<Mutex<Vec<String>>>,
    stopped: Arc<AtomicBool>,
}

impl Scene {
    pub fn new(address: &str, name: &str) -> Self {
        Scene {
            address: address.into(),
            topic: name.into(),
            group: format!("{name}-group"),
            received: Arc::default(),
            stopped: Arc::default(),
        }
    }

    pub fn options(&self) -> (ProducerOption, ClientOption) {
        let (mut producing, mut client) = (ProducerOption::default(), ClientOption::default());
        producing.set_topics(vec![self.topic.as_str()]);
        client.set_access_url(self.address.as_str());
        client.set_enable_tls(std::env::var("INTEROP_GRPC_TLS").is_ok());
        client.set_timeout(Duration::from_secs(10));
        client.set_long_polling_timeout(Duration::from_secs(6));
        if let (Ok(access), Ok(secret)) = (std::env::var("INTEROP_ACCESS_KEY"), std::env::var("INTEROP_SECRET_KEY")) {
            client.set_access_key(access);
            client.set_secret_key(secret);
        }
        (producing, client)
    }

    pub async fn producer(&self) -> Outcome<Producer> {
        let (producing, client) = self.options();
        let mut producer = Producer::new(producing, client)?;
        producer.start().await?;
        Ok(producer)
    }

    pub fn message(&self, body: &str) -> MessageBuilder {
        MessageBuilder::builder().set_topic(self.topic.as_str()).set_body(body.as_bytes().to_vec())
    }

    /// Receives and acknowledges in a task of its own until `stop`.
    pub async fn consume(&self, by: &'static str, group: &str, filter: FilterExpression) -> Outcome {
        let mut consuming = SimpleConsumerOption::default();
        consuming.set_topics(vec![self.topic.as_str()]);
        consuming.set_consumer_group(group);
        let mut consumer = SimpleConsumer::new(consuming, self.options().1)?;
        consumer.start().await?;
        let scene = self.clone();
        tokio::spawn(async move {
            while !scene.stopped.load(Ordering::Relaxed) {
                match consumer.receive_with(&scene.topic, &filter, 16, INVISIBLE).await {
                    Ok(messages) => {
                        for message in messages {
                            scene.note(by, &message);
                            if let Err(error) = consumer.ack(&message).await {
                                event("unacknowledged", json!({"why": error.to_string()}));
                            }
                        }
                    }
                    Err(error) if *error.kind() == ErrorKind::Server && error.to_string().contains("40401") => {}
                    Err(error) => {
                        event("retried", json!({"why": error.to_string()}));
                        sleep(0.5).await;
                    }
                }
            }
        });
        Ok(())
    }

    pub async fn consume_all(&self, by: &'static str) -> Outcome {
        self.consume(by, &self.group, FilterExpression::new(FilterType::Tag, "*")).await
    }

    /// Reports a message that came.
    fn note(&self, by: &str, message: &MessageView) {
        let body = String::from_utf8_lossy(message.body()).to_string();
        let mut keys = message.keys().to_vec();
        keys.sort();
        event(
            "received",
            json!({"by": by, "body": body, "id": message.message_id(), "tags": message.tag(), "keys": keys,
                "properties": message.properties(), "topic": message.topic(), "group": message.message_group(),
                "times": message.delivery_attempt() - 1, "at": now_ms()}),
        );
        self.received.lock().expect("not poisoned").push(body);
    }

    pub fn received(&self) -> Vec<String> {
        self.received.lock().expect("not poisoned").clone()
    }

    pub async fn until_received(&self, number: usize) -> Outcome {
        until(&format!("{number} deliveries"), || self.received().len() >= number).await
    }

    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}
