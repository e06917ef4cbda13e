"""The commands of mqadmin, with the arguments with which they are run and what is expected of them.

In lines and in what they say, names in braces stand for what `Tool.names` tells. Lines are run in this order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

WORKS, ENDLESS, REFUSED, NO_REQUEST = "works", "runs on", "refused", "no request"


@dataclass(frozen=True)
class Step:
    """One run of a command.

    ``says`` is a regular expression that is found in what it prints. ``only`` names the client whose version of the
    command has these arguments, None for both. ``accounts``: without accounts it is refused if it changes something,
    and else not run, since there is nothing to see.
    """

    line: str
    says: str
    verdict: str = WORKS
    only: str | None = None
    accounts: bool = False

    @property
    def command(self) -> str:
        """Its name."""
        return self.line.partition(" ")[0]

    @property
    def arguments(self) -> str:
        """As the page shows them: names in capitals."""
        return re.sub(r"{(\w+)}", lambda name: name[1].upper(), self.line.partition(" ")[2])

    def is_for(self, client: str, *, signed: bool) -> bool:
        """Whether it is run: this client's version has these arguments, and there is something to see."""
        changes = self.command.startswith(("create", "update", "delete"))
        return self.only in (None, client) and (signed or changes or not self.accounts)

    def expected(self, *, signed: bool) -> tuple[str, str]:
        """The verdict, and what is said."""
        if self.accounts and not signed:
            return REFUSED, r"CODE: \d+ .*acl_file"
        return self.verdict, self.says


def _refused(line: str, says: str = r"CODE: 3 .*not supported: \w") -> Step:
    return Step(line, says, REFUSED)


_J4, _J5 = "java4", "java5"

STEPS: tuple[Step, ...] = (
    # Brokers and name servers.
    Step("clusterList", r"{broker} +0 +{leader}"),
    Step("clusterList -m", r"#InTotalYest"),
    Step("clusterList -c {cluster}", r"{broker} +0 +{leader}", only=_J5),
    Step("brokerStatus -c {cluster}", r"brokerVersionDesc"),
    Step("brokerStatus -b {follower}", r"brokerVersionDesc"),
    Step("getBrokerConfig -c {cluster}", r"brokerName *= *{broker}"),
    Step("getBrokerConfig -b {leader}", r"brokerName *= *{broker}"),
    Step("updateBrokerConfig -b {leader} -k fileReservedTime -v 71", r"update broker config success"),
    Step("updateBrokerConfig -c {cluster} -k fileReservedTime -v 72", r"update broker config success"),
    _refused(
        "updateBrokerConfig -b {leader} -k flushDiskType -v ASYNC_FLUSH",
        r"CODE: 16 .*until the broker restarts",
    ),
    Step("getNamesrvConfig", r"listenPort"),
    Step("updateNamesrvConfig -k orderMessageEnable -v true", r"update name server config success"),
    Step("updateKvConfig -s INTEROP -k k -v v", r"create or update kv config to namespace success"),
    Step("deleteKvConfig -s INTEROP -k k", r"delete kv config from namespace success"),
    # Topics.
    Step("updateTopic -c {cluster} -t {topic}-made -r 3 -w 3 -o true", r"create topic to .* success"),
    Step("updateTopic -b {follower} -t {topic}-made -r 4 -w 4 -p 6 -o true", r"create topic to .* success"),
    Step("updateTopic -c {cluster} -t {topic}-fifo -a +message.type=FIFO", r"create topic to .* success", only=_J5),
    Step("updateTopicList -c {cluster} -f {files}/topics.json", r"success"),
    Step("updateTopicPerm -c {cluster} -t {topic}-made -p 4", r"update topic perm from .* to 4"),
    Step("topicList", r"(?m)^{topic}-made$"),
    Step("topicList -c", r"{topic}-made"),
    Step("topicRoute -t {topic}", r"brokerDatas"),
    Step("topicRoute -t {topic} -l", r"{broker}", only=_J5),
    Step("topicClusterList -t {topic}", r"{cluster}"),
    Step("topicStatus -t {topic}", r"{broker} +0 "),
    Step("topicStatus -t {topic} -c {cluster}", r"{broker} +0 ", only=_J5),
    Step("allocateMQ -t {topic} -i a,b", r"\"a\""),
    Step("updateOrderConf -m put -t {topic}-made -v {broker}:3", r"success"),
    Step("updateOrderConf -m get -t {topic}-made", r"{broker}:3"),
    Step("updateOrderConf -m delete -t {topic}-made", r"success"),
    _refused("updateStaticTopic -b {broker} -t {topic}-static -qn 4"),
    _refused("remappingStaticTopic -b {broker} -t {topic}", "Mapping info should not be null"),
    # Messages.
    Step("sendMessage -t {topic} -p hello -k a-key -c a-tag", r"SEND_OK"),
    Step("sendMessage -t {topic} -p hello -b {broker} -i 1", r"{broker} +1 +SEND_OK"),
    Step("sendMessage -t {topic} -p hello -m true", r"SEND_OK"),
    Step("consumeMessage -t {topic} -g {group}-tool", r"hello"),
    Step("consumeMessage -t {topic} -b {broker} -i {queue} -o 0 -c 1", r"Consume ok"),
    Step("queryMsgById -i {offset_id}", r"{id}", only=_J4),
    Step("queryMsgById -i {offset_id} -g {group} -d {client}", r"CR_SUCCESS", only=_J4),
    Step("queryMsgById -t {topic} -i {offset_id}", r"{id}", only=_J5),
    Step("queryMsgById -t {topic} -i {offset_id} -g {group} -d {client}", r"CR_SUCCESS", only=_J5),
    Step("queryMsgByKey -t {topic} -k the-key", r"{id}"),
    Step("queryMsgByUniqueKey -t {topic} -i {id}", r"Keys: +\[the-key\]"),
    Step("queryMsgByUniqueKey -t {topic} -i {id} -g {group} -d {client}", r"CR_SUCCESS"),
    Step("queryMsgByOffset -t {topic} -b {broker} -i {queue} -o {offset}", r"{id}"),
    Step("queryMsgTraceById -i {id}", r"Pub +{producer}"),
    Step("printMsg -t {topic}", r"{id}"),
    Step("printMsg -t {topic} -s a-tag -d true", r"hello"),
    Step("printMsgByQueue -t {topic} -a {broker} -i {queue} -p true", r"{id}"),
    Step("queryCq -t {topic} -q {queue} -i 0 -c 5", r"physicOffset=\d+"),
    Step("queryCq -t {topic} -q {queue} -i 0 -c 5 -b {leader} -g {group}", r"Subscription data"),
    Step("checkMsgSendRT -t {topic} -a 3", r"Avg RT"),
    Step("sendMsgStatus -b {broker} -c 3", r"SEND_OK"),
    Step("clusterRT -a 3 -i 1 -c {cluster}", r"{cluster}", ENDLESS),
    Step("statsAll -t {topic}", r"{topic}"),
    Step("statsAll -a", r"#InTPS|#Topic"),
    Step("dumpCompactionLog -f {files}/none", r"", NO_REQUEST),
    # Consumer groups.
    Step("updateSubGroup -c {cluster} -g {group}-made -r 5", r"create subscription group to .* success"),
    Step("updateSubGroupList -c {cluster} -f {files}/groups.json", r"success"),
    Step("setConsumeMode -c {cluster} -t {topic} -g {group}-made -m PULL", r"set consume mode to .* success"),
    Step("setConsumeMode -b {follower} -t {topic} -g {group}-made -m POP -q 0", r"set consume mode to .* success"),
    Step("getConsumerConfig -g {group}-made", r"{group}-made"),
    Step("consumerProgress -g {group}", r"Diff Total: \d+"),
    Step("consumerProgress -g {group} -s true", r"\d+\.\d+\.\d+\.\d+"),
    Step("consumerProgress -g {group} -t {topic}", r"Diff Total: \d+", only=_J5),
    Step("consumerProgress", r"{group}"),
    Step("consumerConnection -g {group}", r"{client}"),
    Step("consumerConnection -g {group} -b {leader}", r"{client}"),
    Step("consumerStatus -g {group}", r"{client}"),
    Step("consumerStatus -g {group} -i {client}", r"#Consumer Properties#"),
    Step("producerConnection -g {producer} -t {topic}", r"127.0.0.1"),
    Step("producer -b {leader}", r"{producer}"),
    Step("brokerConsumeStats -b {leader}", r"{group}"),
    Step("cloneGroupOffset -s {group} -d {group}-made -t {topic} -o true", r"clone group offset success"),
    Step("resetOffsetByTime -g {group} -t {topic} -s now", r"{broker}"),
    Step("resetOffsetByTime -g {group} -t {topic} -s now -b {leader} -q 0 -o 0", r"reset", only=_J5),
    Step("skipAccumulatedMessage -g {group} -t {topic}", r"{broker}"),
    Step("startMonitoring", r"", ENDLESS),
    # Exports.
    Step("exportMetadata -c {cluster} -f {files}/export", r"export .*success"),
    Step("exportMetadata -b {leader} -f {files}/export -t", r"export .*success"),
    Step("exportMetadata -b {leader} -f {files}/export -g", r"export .*success"),
    Step("exportConfigs -c {cluster} -f {files}/export", r"export .*success"),
    Step("exportMetrics -c {cluster} -f {files}/export", r"export .*success"),
    _refused("exportPopRecord -b {leader}"),
    # Maintenance.
    Step("cleanExpiredCQ -c {cluster}", r"success"),
    Step("cleanUnusedTopic -c {cluster}", r"success"),
    Step("deleteExpiredCommitLog -c {cluster}", r"success"),
    Step("wipeWritePerm -b {broker}", r"wipe write perm of broker\[{broker}\] .*OK"),
    Step("addWritePerm -b {broker}", r"add write perm of broker\[{broker}\] .*OK"),
    # Users and policies.
    Step("createUser -c {cluster} -u {topic}-user -p a-PASSWORD-4711 -t Normal", r"success", accounts=True),
    Step("updateUser -c {cluster} -u {topic}-user -s disable", r"success", accounts=True),
    Step("getUser -c {cluster} -u {topic}-user", r"{topic}-user +.*Normal", accounts=True),
    Step("listUser -c {cluster}", r"{topic}-user", accounts=True),
    Step("copyUser -f {leader} -t {follower} -u {topic}-user", r"success", accounts=True),
    Step("createAcl -c {cluster} -s User:{topic}-user -r Topic:{topic} -a Pub -d Allow", r"success", accounts=True),
    Step("updateAcl -c {cluster} -s User:{topic}-user -r Topic:{topic} -a Sub -d Deny", r"success", accounts=True),
    Step("getAcl -c {cluster} -s User:{topic}-user", r"Topic:{topic} +.*Sub", accounts=True),
    Step("listAcl -c {cluster}", r"User:{topic}-user", accounts=True),
    Step("copyAcl -f {leader} -t {follower} -s User:{topic}-user", r"success", accounts=True),
    Step("deleteAcl -c {cluster} -s User:{topic}-user -r Topic:{topic}", r"success", accounts=True),
    Step("deleteUser -c {cluster} -u {topic}-user", r"success", accounts=True),
    _refused("updateAclConfig -b {leader} -a interop-new -s secret-SECRET"),
    _refused("deleteAclConfig -b {leader} -a interop-new"),
    _refused("updateGlobalWhiteAddr -b {leader} -g 10.10.103.*"),
    _refused("clusterAclConfigVersion -b {leader}"),
    # What goes with masters and slaves, controllers, containers and RocksDB.
    _refused("haStatus -b {leader}"),
    _refused("getBrokerEpoch -b {broker}"),
    _refused("resetMasterFlushOffset -b {follower} -o 0"),
    _refused("getSyncStateSet -a {leader} -b {broker}"),
    _refused("getControllerMetaData -a {leader}"),
    _refused("getControllerConfig -a {leader}"),
    _refused("updateControllerConfig -a {leader} -k a -v b"),
    _refused("electMaster -a {leader} -b 1 -bn {broker} -c {cluster}"),
    _refused("cleanBrokerMetadata -a {leader} -b 1 -bn {broker} -c {cluster}"),
    _refused("addBroker -c {leader} -b {files}/broker.conf"),
    _refused("removeBroker -c {leader} -b {cluster}:{broker}:1"),
    _refused("getColdDataFlowCtrInfo -b {leader}"),
    _refused("updateColdDataFlowCtrGroupConfig -b {leader} -g {group} -v 1024"),
    _refused("removeColdDataFlowCtrGroupConfig -b {leader} -g {group}"),
    _refused("setCommitLogReadAheadMode -b {leader} -m 0"),
    _refused("checkRocksdbCqWriteProgress -c {cluster} -t {topic}"),
    _refused("rocksDBConfigToJson -c {cluster} -t topics"),
    Step("exportMetadataInRocksDB -p {files}/none -t topics", r"", NO_REQUEST),
    # Away with what was made.
    Step("deleteSubGroup -c {cluster} -g {group}-made -r true", r"delete subscription group .* success"),
    Step("deleteTopic -c {cluster} -t {topic}-made", r"delete topic .* success"),
)
