//! What a scenario plays with: its topic, and clients of its groups.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq_client_rust::{
    AclClientRPCHook, ClientConfig, ClientResult, ClientRuntime, ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext, ConsumeOrderlyStatus, DefaultMQProducer, DefaultMQPushConsumer,
    DefaultMQPushConsumerBuilder, MQPushConsumer, MessageListenerConcurrently, MessageListenerOrderly,
    SessionCredentials,
};
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_model::common::message::message_single::Message;
use rocketmq_transport::api::RPCHook;
use serde_json::{json, Value};

pub type Outcome = Result<(), Box<dyn std::error::Error>>;

const PATIENCE: Duration = Duration::from_secs(100);

/// Longer than consumers take to share queues anew after they were told to.
pub const REBALANCED: Duration = Duration::from_secs(5);

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

pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64
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

/// The file with the authority of the servers' certificates, if they want TLS.
pub fn authority() -> Option<String> {
    std::env::var("INTEROP_TLS_CA").ok()
}

/// TLS, and with servers of that authority only, if they want TLS.
pub fn trust_authority(config: &mut ClientConfig) {
    if let Some(authority) = authority() {
        config.set_use_tls(true);
        config.set_tls_client_auth_server(true);
        config.set_tls_client_trust_cert_path(authority);
    }
}

/// What clients sign their requests with, if servers have accounts.
pub fn client_keys() -> Option<Arc<dyn RPCHook>> {
    keys("INTEROP_ACCESS_KEY", "INTEROP_SECRET_KEY")
}

/// The same of an administrator.
pub fn admin_keys() -> Option<Arc<dyn RPCHook>> {
    keys("INTEROP_ADMIN_ACCESS_KEY", "INTEROP_ADMIN_SECRET_KEY")
}

fn keys(access_key: &str, secret_key: &str) -> Option<Arc<dyn RPCHook>> {
    let credentials = SessionCredentials::with_keys(std::env::var(access_key).ok()?, std::env::var(secret_key).ok()?);
    Some(Arc::new(AclClientRPCHook::new(credentials)))
}

pub struct Scene {
    pub runtime: Arc<ClientRuntime>,
    pub namesrv: String,
    pub topic: String,
    pub group: String,
    /// Whether its clients write down what becomes of their messages.
    pub traced: bool,
}

impl Scene {
    pub fn config(&self, instance: &str) -> ClientConfig {
        let mut config = ClientConfig {
            namesrv_addr: Some(self.namesrv.clone().into()),
            instance_name: format!("{}-{instance}", self.topic).into(),
            vip_channel_enabled: false,
            enable_trace: self.traced,
            ..Default::default()
        };
        trust_authority(&mut config);
        config
    }

    pub async fn producer(&self, instance: &str) -> ClientResult<DefaultMQProducer> {
        self.producer_compressing_from(instance, 4096, client_keys()).await
    }

    pub async fn producer_compressing_from(
        &self,
        instance: &str,
        bytes: u32,
        keys: Option<Arc<dyn RPCHook>>,
    ) -> ClientResult<DefaultMQProducer> {
        let mut builder = DefaultMQProducer::builder(self.runtime.clone())
            .client_config(self.config(instance))
            .producer_group(format!("{}-{instance}", self.topic))
            .compress_msg_body_over_howmuch(bytes);
        if let Some(keys) = keys {
            builder = builder.rpc_hook(keys);
        }
        let mut producer = builder.build();
        producer.start().await?;
        Ok(producer)
    }

    /// One that is not built, of the scenario's group, reading from the first message on.
    pub fn consumer(&self, instance: &str) -> DefaultMQPushConsumerBuilder {
        DefaultMQPushConsumer::builder(self.runtime.clone())
            .client_config(self.config(instance))
            .consumer_group(self.group.clone())
            .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
            .rpc_hook(client_keys())
    }

    pub fn message(&self, body: &str) -> Message {
        Message::builder().topic(self.topic.as_str()).body_slice(body.as_bytes()).build_unchecked()
    }

    pub async fn send(&self, producer: &DefaultMQProducer, numbers: std::ops::Range<usize>) -> Outcome {
        for number in numbers {
            let body = format!("m-{number}");
            producer.send(self.message(&body)).await?;
            event("sent", json!({"form": "sync", "body": body}));
        }
        Ok(())
    }
}

pub fn text(message: &MessageExt) -> String {
    String::from_utf8_lossy(&message.body().unwrap_or_default()).into_owned()
}

pub fn property(message: &MessageExt, name: &str) -> Option<String> {
    message.properties().get(name).map(|value| value.to_string())
}

/// What the producer told; the library itself takes the broker's.
pub fn unique_id(message: &MessageExt) -> String {
    property(message, "UNIQ_KEY").unwrap_or_else(|| message.msg_id().to_string())
}

pub fn received(by: &str, message: &MessageExt) {
    event(
        "received",
        json!({
            "by": by, "body": text(message), "id": unique_id(message), "queue": message.queue_id(),
            "offset": message.queue_offset(), "tags": property(message, "TAGS"), "times": message.reconsume_times(),
            "topic": message.topic().as_str(), "at": now_ms(),
        }),
    );
}

/// What a listener does with one message: whether it succeeds.
pub type Handle = Arc<dyn Fn(&MessageExt) -> bool + Send + Sync>;

pub struct Listener(pub Handle);

impl MessageListenerConcurrently for Listener {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _: &ConsumeConcurrentlyContext,
    ) -> ClientResult<ConsumeConcurrentlyStatus> {
        Ok(match messages.iter().all(|message| (self.0)(message)) {
            true => ConsumeConcurrentlyStatus::ConsumeSuccess,
            false => ConsumeConcurrentlyStatus::ReconsumeLater,
        })
    }
}

impl MessageListenerOrderly for Listener {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        context: &mut ConsumeOrderlyContext,
    ) -> ClientResult<ConsumeOrderlyStatus> {
        context.set_suspend_current_queue_time_millis(100);
        Ok(match messages.iter().all(|message| (self.0)(message)) {
            true => ConsumeOrderlyStatus::Success,
            false => ConsumeOrderlyStatus::SuspendCurrentQueueAMoment,
        })
    }
}

/// Counts what arrived.
#[derive(Default)]
pub struct Tally(Mutex<HashMap<String, usize>>);

impl Tally {
    pub fn handle(self: &Arc<Self>, by: &str) -> Handle {
        let (tally, by) = (self.clone(), by.to_string());
        Arc::new(move |message| {
            received(&by, message);
            *tally.0.lock().unwrap().entry(text(message)).or_default() += 1;
            true
        })
    }

    pub fn count(&self) -> usize {
        self.0.lock().unwrap().values().sum()
    }

    pub async fn until_seen(&self, number: usize) -> Outcome {
        until(&format!("{number} messages"), || self.0.lock().unwrap().len() >= number).await
    }

    pub async fn start(
        self: &Arc<Self>,
        scene: &Scene,
        instance: &str,
        builder: DefaultMQPushConsumerBuilder,
    ) -> ClientResult<DefaultMQPushConsumer> {
        let mut consumer = builder.build();
        consumer.subscribe(scene.topic.as_str(), "*").await?;
        consumer.register_message_listener_concurrently(Listener(self.handle(instance)));
        consumer.start().await?;
        Ok(consumer)
    }
}
