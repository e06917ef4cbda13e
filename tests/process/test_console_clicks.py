"""Users, members and groups changed in a real browser: each test has brokers of its own, which it leaves changed."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import trio
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select

from mq.client import Admin, Message, TransactionProducer
from mq.client.sync import SyncAdmin
from mq.inspection.catalogue import CatalogueAdmin
from mq.local_cluster import HOST, DevCluster, Ports
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from tests.support.chromium import IN_CHROMIUM, click, left_afterwards, text_of
from tests.support.dev_clusters import short_lived
from tests.support.joining_broker import start_joining
from tests.support.waiting import wait_until

pytestmark = IN_CHROMIUM


def test_user_and_its_quota_are_changed_by_clicks(browser: webdriver.Chrome, tmp_path: Path) -> None:
    """With accounts: the console signs with the keys of its environment."""
    keys = {"RAFTMQ_ACCESS_KEY": "operator", "RAFTMQ_SECRET_KEY": "operator-secret"}
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text("accounts:\n- {accessKey: operator, secretKey: operator-secret, admin: true}\n")
    with short_lived("--nodes", "1", "--set", f"acl_file={accounts}", env=keys) as said, left_afterwards(browser):
        browser.get(f"http://{said['console']}")
        click(browser, By.LINK_TEXT, "Users")
        assert "operator administrator yes acl_file" in text_of(browser).replace("\t", " ")
        click(browser, By.XPATH, "//summary[.='New user']")
        browser.find_element(By.NAME, "name").send_keys("shop-one")
        for field in ("password", "again"):
            browser.find_element(By.NAME, field).send_keys("secret-of-shop")
        click(browser, By.XPATH, "//button[.='Create']")
        wait_until(lambda: "User shop-one was created." in text_of(browser))
        click(browser, By.XPATH, "//summary[.='Add a policy']")
        browser.find_element(By.NAME, "resource").send_keys("Topic:Orders")
        click(browser, By.XPATH, "//button[.='Add']")
        wait_until(lambda: "allow Pub, Sub on Topic:Orders" in text_of(browser))
        click(browser, By.XPATH, "//summary[.='Set the quota']")
        browser.find_element(By.NAME, "produce_messages").send_keys("50")
        click(browser, By.XPATH, "//button[.='Set']")
        wait_until(lambda: "The quota of shop-one is now: produce 50 messages/s." in text_of(browser))
        click(browser, By.XPATH, "//button[.='Delete']")
        wait_until(lambda: "has no policy for Topic:Orders any more" in text_of(browser))
        click(browser, By.XPATH, "//summary[.='Delete the user']")
        browser.find_element(By.NAME, "typed").send_keys("shop-one")
        click(browser, By.XPATH, "//form[@action='/delete-user']//button")
        wait_until(lambda: "User shop-one and its policies were deleted." in text_of(browser))


CONSUMING = """
import sys, trio
from mq.client import PushConsumer

async def main():
    consumer = PushConsumer(sys.argv[1], group="mail", ordered=False)

    @consumer.on("Orders")
    async def handle(message):
        pass

    async with consumer:
        await consumer.run()

trio.run(main)
"""


def test_members_of_both_kinds_of_groups_are_removed_by_clicks(browser: webdriver.Chrome) -> None:
    with short_lived("--nodes", "3", env={}) as said, left_afterwards(browser):
        with SyncAdmin(said["namesrv"]) as admin:
            admin.create_topic("Orders", queues=1)
        consumer = subprocess.Popen([sys.executable, "-c", CONSUMING, said["namesrv"]], stderr=subprocess.DEVNULL)
        try:
            with SyncAdmin(said["namesrv"]) as admin:
                wait_until(lambda: bool(admin.group_members("mail")))
            browser.get(f"http://{said['console']}/group?name=mail")
            click(browser, By.LINK_TEXT, "remove")
            browser.find_element(By.NAME, "typed").send_keys("mail")
            click(browser, By.XPATH, "//button[.='Remove it']")
            wait_until(lambda: "stays out of mail for 5 minutes" in text_of(browser))
            wait_until(lambda: bool(browser.find_elements(By.XPATH, "//button[.='Let it in again']")))
            click(browser, By.XPATH, "//button[.='Let it in again']")
            wait_until(lambda: "may be a member of mail again" in text_of(browser))
        finally:
            consumer.kill()
            consumer.wait()
        [group] = said["broker_groups"]
        follower = next(each["node_id"] for each in group["replicas"] if each["node_id"] != group["leader"])
        browser.get(f"http://{said['console']}/members?name=broker-a")
        click(browser, By.XPATH, "//summary[.='Remove a node']")
        form = "//form[.//input[@name='action'][@value='remove']]"
        Select(browser.find_element(By.XPATH, f"{form}//select")).select_by_visible_text(follower)
        click(browser, By.XPATH, f"{form}//button")
        wait_until(lambda: "2 voters then, instead of 3" in text_of(browser))
        browser.find_element(By.NAME, "typed").send_keys(follower)
        click(browser, By.CSS_SELECTOR, "form[action='/member-change'] button")
        wait_until(lambda: "It has ended." in text_of(browser))
        browser.get(f"http://{said['console']}/members?name=broker-a")
        assert follower not in browser.find_element(By.TAG_NAME, "table").text


def members_shown(browser: webdriver.Chrome, console: str) -> str:
    browser.get(f"{console}/members?name=broker-a")
    return browser.find_element(By.TAG_NAME, "table").text


def promote_and_replace(browser: webdriver.Chrome, console: str, ports: Ports) -> None:
    """n3 is added as a learner and promoted, then n2 is replaced by n4."""
    assert "n3" not in members_shown(browser, console)
    click(browser, By.XPATH, "//summary[.='Add a node']")
    form = "//form[.//input[@name='action'][@value='add']]"
    browser.find_element(By.XPATH, f"{form}//input[@name='node']").send_keys("n3")
    browser.find_element(By.XPATH, f"{form}//input[@name='address']").send_keys(f"{HOST}:{ports.replication[3]}")
    click(browser, By.XPATH, f"{form}//button")
    wait_until(lambda: "Nothing is changed yet" in text_of(browser))
    click(browser, By.CSS_SELECTOR, "form[action='/member-change'] button")
    wait_until(lambda: "It has ended." in text_of(browser))
    assert "learner" in members_shown(browser, console)

    def is_promoted() -> bool:
        """The leader refuses that before the learner has caught up."""
        members_shown(browser, console)
        click(browser, By.XPATH, "//summary[.='Promote a learner']")
        click(browser, By.XPATH, "//form[.//input[@name='action'][@value='promote']]//button")
        wait_until(lambda: "4 voters then, instead of 3" in text_of(browser))
        click(browser, By.XPATH, "//button[.='Promote']")
        wait_until(lambda: re.search(r"It has ended\.|It stopped: ", text_of(browser)))
        return "It stopped: " not in text_of(browser)

    wait_until(is_promoted)
    assert "learner" not in members_shown(browser, console)

    click(browser, By.XPATH, "//summary[.='Replace a voter by a new node']")
    form = "//form[.//input[@name='action'][@value='replace']]"
    Select(browser.find_element(By.XPATH, f"{form}//select")).select_by_visible_text("n2")
    browser.find_element(By.XPATH, f"{form}//input[@name='node']").send_keys("n4")
    browser.find_element(By.XPATH, f"{form}//input[@name='address']").send_keys(f"{HOST}:{ports.replication[4]}")
    click(browser, By.XPATH, f"{form}//button")
    wait_until(lambda: "Nothing is changed yet" in text_of(browser))
    browser.find_element(By.NAME, "typed").send_keys("n2")
    click(browser, By.XPATH, "//button[.='Replace']")
    wait_until(lambda: "It has ended." in text_of(browser), seconds=90)
    assert "It stopped: " not in text_of(browser)
    shown = members_shown(browser, console)
    assert "n4" in shown
    assert "n2" not in shown


def test_members_are_promoted_and_replaced_by_clicks(browser: webdriver.Chrome, tmp_path: Path) -> None:
    async def main() -> None:
        ports = Ports.free(5)
        first = Ports(ports.namesrv, ports.clients[:3], ports.replication[:3])
        async with DevCluster.open(tmp_path, ports=first) as cluster, trio.open_nursery() as nursery:
            async with Admin(cluster.namesrv) as admin:
                await admin.create_topic("Orders", 1)
            for number in (3, 4):
                await start_joining(cluster, ports, nursery, number)
            console = f"http://{HOST}:{await cluster.start_console(0)}"
            with left_afterwards(browser):
                await trio.to_thread.run_sync(partial(promote_and_replace, browser, console, ports))
            nursery.cancel_scope.cancel()

    trio.run(main)


async def leave_open(namesrv: str) -> None:
    """Begin a transaction of which nobody says how it ends: it is given up after the first question."""
    async with (
        TransactionProducer(namesrv, "shop", check=lambda message: None) as producer,
        producer.transaction(Message("Orders", b"body", keys=["lost"])) as begun,
    ):
        begun.leave_open()


async def create_group(namesrv: str) -> None:
    async with CatalogueAdmin(namesrv) as admin:
        await admin.put_groups([SubscriptionGroupConfig(group_name="mail")])


def test_transaction_is_resumed_and_a_group_deleted_by_clicks(browser: webdriver.Chrome) -> None:
    quick = {"transaction_timeout_seconds": 1, "transaction_check_seconds": 1, "transaction_checks_max": 1}
    settings = [part for name, value in quick.items() for part in ("--set", f"{name}={value}")]
    with short_lived("--nodes", "1", *settings, env={}) as said, left_afterwards(browser):
        with SyncAdmin(said["namesrv"]) as admin:
            admin.create_topic("Orders", queues=1)
        trio.run(leave_open, said["namesrv"])
        trio.run(create_group, said["namesrv"])

        def is_given_up() -> bool:
            browser.get(f"http://{said['console']}/pending?kind=given-up")
            return "lost" in text_of(browser)

        wait_until(is_given_up)
        click(browser, By.XPATH, "//button[.='Resume']")
        wait_until(lambda: "is open again" in text_of(browser))

        browser.get(f"http://{said['console']}/group?name=mail")
        click(browser, By.LINK_TEXT, "Delete this group")
        assert "Nothing is changed yet" in text_of(browser)
        browser.find_element(By.NAME, "typed").send_keys("mail")
        click(browser, By.XPATH, "//button[.='Delete']")
        wait_until(lambda: "mail was deleted" in text_of(browser))
        browser.get(f"http://{said['console']}/groups")
        assert "mail" not in text_of(browser)
