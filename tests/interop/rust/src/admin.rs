//! The admin client's calls.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::sync::Arc;

use rocketmq_client_rust::{BrokerAdmin, ConsumerAdmin, DefaultMQAdminExt, RouteAdmin, TopicAdmin};
use rocketmq_model::topic::TopicConfig;
use rocketmq_protocol::protocol::route_facade::select_broker_addr;
use rocketmq_protocol::protocol::subscription::subscription_group_config::SubscriptionGroupConfig;
use serde_json::json;

use crate::scene::{admin_keys, event, sleep, trust_authority, Outcome, Scene, Tally};

const TIMEOUT_MS: u64 = 5000;

/// Reports the value that a call returns, or its error.
fn call<V: Display, E: Display + std::fmt::Debug>(name: &str, outcome: Result<V, E>) {
    match outcome {
        Ok(value) => event("call", json!({"name": name, "value": value.to_string()})),
        Err(error) => event("call", json!({"name": name, "error": format!("{error} {error:?}")})),
    }
}

pub async fn calls(scene: &Scene) -> Outcome {
    let mut admin = match admin_keys() {
        Some(keys) => DefaultMQAdminExt::with_rpc_hook(scene.runtime.clone(), keys),
        None => DefaultMQAdminExt::new(scene.runtime.clone()),
    };
    trust_authority(admin.client_config_mut());
    admin.set_namesrv_addr(scene.namesrv.clone());
    admin.start().await?;
    event("lacking", json!({"calls": ["cloneGroupOffset", "consumeTimeSpan"]}));
    let cluster = admin.examine_broker_cluster_info().await?;
    call("clusterInfo", Ok::<_, String>(format!("{:?}", cluster.cluster_addr_table)));
    let brokers = cluster.broker_addr_table.ok_or("no brokers")?;
    let leader = select_broker_addr(brokers.values().next().ok_or("no broker")?).ok_or("no leader")?;
    let topic = || scene.topic.clone().into();
    let group = || scene.group.clone().into();
    let fresh = format!("{}-made", scene.topic);
    let made = format!("{}-made", scene.group);

    let config = TopicConfig { read_queue_nums: 3, write_queue_nums: 2, ..TopicConfig::new(fresh.as_str()) };
    let outcome = admin.create_and_update_topic_config(leader.clone(), config).await;
    sleep(0.5).await; // the broker tells the name servers
    call("createTopic", outcome.map(|()| ""));
    let route = admin.examine_topic_route_info(fresh.clone().into()).await;
    call(
        "route",
        route.map(|route| {
            let queues = &route.expect("a topic that was just made").queue_datas[0];
            format!("{} {} {}", queues.read_queue_nums, queues.write_queue_nums, queues.perm)
        }),
    );
    let config = admin.examine_topic_config(leader.clone(), fresh.clone().into()).await;
    call("topicConfig", config.map(|config| config.read_queue_nums));
    let has = |topics: &[_]| topics.iter().any(|topic| *topic == fresh.as_str());
    call("topicList", admin.fetch_all_topic_list().await.map(|topics| has(&topics.topic_list)));
    let topics = TopicAdmin::fetch_topics_by_cluster(&admin, "DefaultCluster".into()).await;
    call("topicsOfCluster", topics.map(|topics| has(&topics.topic_list)));
    let configs = admin.get_all_topic_config(leader.clone(), TIMEOUT_MS).await;
    let known = |table: &HashMap<_, _>| table.contains_key(fresh.as_str());
    call("allTopicConfig", configs.map(|configs| configs.topic_config_table().is_some_and(known)));
    let mut config = SubscriptionGroupConfig::new(made.clone().into());
    config.set_retry_max_times(5);
    let outcome = admin.create_and_update_subscription_group_config(leader.clone(), config).await;
    call("createGroup", outcome.map(|()| ""));
    let config = admin.examine_subscription_group_config(leader.clone(), made.clone().into()).await;
    call("group", config.map(|config| config.retry_max_times()));
    let groups = admin.get_all_subscription_group(leader.clone(), TIMEOUT_MS).await;
    call("allGroups", groups.map(|groups| groups.get_subscription_group_table().contains_key(made.as_str())));

    let all = Arc::new(Tally::default());
    let producer = scene.producer("producer").await?;
    scene.send(&producer, 0..40).await?;
    let mut consumer = all.start(scene, "a", scene.consumer("a")).await?;
    all.until_seen(40).await?;
    sleep(12.0).await; // what it has read is stored for the first time after ten seconds
    let stats = admin.examine_topic_stats(topic(), Some(leader.clone())).await;
    call(
        "topicStats",
        stats.map(|stats| {
            let offsets = stats.into_offset_table();
            format!("{} {}", offsets.len(), offsets.values().map(|each| each.get_max_offset()).sum::<i64>())
        }),
    );
    let stats = admin.examine_consume_stats(group(), Some(topic()), None, None, None).await;
    call("consumeStats", stats.map(|stats| format!("{} {}", stats.offset_table.len(), stats.compute_total_diff())));
    let stats = admin.examine_consume_stats(group(), None, None, None, None).await;
    call("consumeStatsOfGroup", stats.map(|stats| stats.compute_total_diff()));
    let connection = ConsumerAdmin::examine_consumer_connection_info(&admin, group(), None).await;
    let mut client = None;
    call(
        "consumerConnection",
        connection.map(|connection| {
            let members = connection.get_connection_set();
            client = members.iter().next().map(|member| member.get_client_id().clone());
            format!("{} {}", members.len(), connection.get_subscription_table().contains_key(scene.topic.as_str()))
        }),
    );
    let client = client.unwrap_or_default();
    let producers = format!("{}-producer", scene.topic).into();
    let connection = ConsumerAdmin::examine_producer_connection_info(&admin, producers, topic()).await;
    call("producerConnection", connection.map(|connection| connection.connection_set().len()));
    let info = admin.get_consumer_running_info(group(), client.clone(), false, None).await;
    call("consumerRunningInfo", info.map(|info| info.subscription_set.len()));
    // It takes an answer for empty in which queues are the keys of a client's table, as Java writes it.
    event("lacking", json!({"calls": ["consumerStatus"]}));
    let groups = TopicAdmin::query_topic_consume_by_who(&admin, topic()).await;
    call("whoConsumes", groups.map(|groups| groups.get_group_list().contains(scene.group.as_str())));
    let stats = BrokerAdmin::fetch_broker_runtime_stats(&admin, leader.clone()).await;
    call("runtimeStats", stats.map(|stats| stats.table.contains_key("brokerVersionDesc")));
    let config = admin.get_broker_config(leader.clone()).await;
    call("brokerConfig", config.map(|config| config.contains_key("brokerName")));
    let direct = producer.send(scene.message("direct")).await?.ok_or("sent without a result")?;
    let id = direct.offset_msg_id.unwrap_or_default();
    let outcome = admin.consume_message_directly(group(), client, topic(), id.into()).await;
    call(
        "consumeDirectly",
        outcome.map(|outcome| outcome.consume_result().map_or_else(String::new, |it| it.to_string())),
    );
    let (space, key) = ("INTEROP", scene.topic.as_str());
    admin.create_and_update_kv_config(space.into(), key.into(), "v".into()).await?;
    call("kv", admin.get_kv_config(space.into(), key.into()).await);
    admin.delete_kv_config(space.into(), key.into()).await?;
    consumer.shutdown().await;
    let outcome = admin.delete_subscription_group(leader.clone(), made.clone().into(), None).await;
    let groups = admin.get_all_subscription_group(leader.clone(), TIMEOUT_MS).await?;
    call("deleteGroup", outcome.map(|()| groups.get_subscription_group_table().contains_key(made.as_str())));
    let outcome = admin.delete_topic_in_broker(HashSet::from([leader.clone()]), fresh.clone().into()).await;
    let servers = HashSet::from([scene.namesrv.clone().into()]);
    admin.delete_topic_in_name_server(servers, Some("DefaultCluster".into()), fresh.clone().into()).await?;
    let topics = admin.fetch_all_topic_list().await?;
    call("deleteTopic", outcome.map(|()| has(&topics.topic_list)));
    Ok(())
}
