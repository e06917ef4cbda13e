"""The console in a real browser, in front of real brokers: every page, every change, a leader that is killed.

REWRITE=1 writes the pictures of docs/console.md. Without Chromium and its driver these tests are skipped; without npm,
those of the rules of accessibility. They run at night: to install Chromium and to show every page in it takes minutes,
which a run at each change does not have. The same pages and changes are tested over HTTP in `tests/kit`.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from mq.client import Admin, Every, Message, Schedule
from mq.client.sync import SyncAdmin, SyncProducer
from tests.support.chromium import IN_CHROMIUM, click, text_of
from tests.support.waiting import wait_until

PICTURES = Path(__file__).parents[2] / "docs" / "images" / "console"

pytestmark = IN_CHROMIUM

HOSTILE = "<img src=x onerror=document.title='harm'>"
PAGES = {
    "overview": "/",
    "alarms": "/alarms",
    "broker-group": "/broker-group?name=broker-a",
    "members": "/members?name=broker-a",
    "member-change": "/member-change?name=broker-a&action=replace&replaced=n1&node=n9&address=127.0.0.1:1",
    "settings": "",
    "topics": "/topics",
    "topic": "/topic?name=Orders",
    "new-topic": "/new-topic",
    "delete-topic": "/delete-topic?name=Orders",
    "delete-group": "/delete-group?name=mail",
    "messages": "/messages?topic=Orders",
    "message": "",
    "tail": "/tail?topic=Orders",
    "send": "/send?topic=Orders",
    "groups": "/groups?order=behind",
    "group": "/group?name=mail",
    "reset": "/reset?name=mail&topic=Orders&to=first",
    "dead-letter-groups": "/dead-letter-groups",
    "dead-letters": "/dead-letters?group=mail",
    "pending": "/pending",
    "half": "/pending?kind=half",
    "schedules": "/schedules",
    "readers": "/readers",
    "events": "/events",
    "accounts": "/accounts",
    "account": "/account?name=*",
    "changes": "/changes",
}
AXE_VERSION = "4.10.3"
RUN_AXE = """
const done = arguments[arguments.length - 1];
axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}).then((result) => done(
  result.violations.map((each) => ({id: each.id, help: each.help, nodes: each.nodes.map((node) => node.html)}))));
"""

FAILING = """
import sys, trio
from mq.client import PushConsumer

async def main():
    consumer = PushConsumer(sys.argv[1], group="mail", ordered=False, max_reconsume_times=0, consume_from="first")
    count = 0

    @consumer.on("Orders")
    async def handle(message):
        nonlocal count
        count += 1
        if count == 12:
            consumer.stop()
        raise LookupError("no such address: <nobody@example.com>")

    async with consumer:
        await consumer.run()

trio.run(main)
"""


class Running:
    """Brokers and a console as `raftmq dev` starts them."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.namesrv: str = said["namesrv"]
        self.address = f"http://{said['console']}"
        [self.group] = said["broker_groups"]

    def leader(self) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "mq.cli", "status", "--json", "--namesrv", self.namesrv],
            capture_output=True,
            text=True,
            timeout=60,
        )
        [group] = json.loads(done.stdout)
        return str(group["leader"])

    def kill(self, node: str) -> None:
        [pid] = [each["pid"] for each in self.group["replicas"] if each["node_id"] == node]
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Three replicas with 40 orders, of which a consumer failed at some, and a console that may change everything."""
    command = [sys.executable, "-m", "mq.cli", "dev", "--dir", str(tmp_path_factory.mktemp("dev")), "--port", "0"]
    more = ["--console", "--json", *("--set", "segment_bytes=16777216")]
    ratios = [part for name in ("warn", "expire", "full") for part in ("--set", f"disk_{name}_ratio=1")]
    process = subprocess.Popen([*command, *more, *ratios], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        found = Running(json.loads(process.stdout.readline()))
        with SyncAdmin(found.namesrv) as admin, SyncProducer(found.namesrv) as producer:
            admin.create_topic("Orders", queues=4)
            for number in range(40):
                body = json.dumps({"order": number, "price": 12.50, "note": HOSTILE}).encode()
                keys = [f"order-{number}"]
                producer.send(Message("Orders", body, tags="new", keys=keys, properties={"customer": HOSTILE}))
        subprocess.run([sys.executable, "-c", FAILING, found.namesrv], check=True, timeout=120, capture_output=True)
        yield found
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def addresses(browser: webdriver.Chrome, running: Running) -> dict[str, str]:
    """The pages, with those that are reached by a link only."""
    browser.get(running.address)
    first_link = "return document.querySelector('td a').href"
    settings = browser.execute_script(first_link)
    browser.get(running.address + PAGES["messages"])
    message = browser.execute_script(first_link)
    found = {name: running.address + path for name, path in PAGES.items()}
    return found | {"settings": str(settings), "message": str(message)}


def test_every_page_fits_into_a_window_and_a_phone(browser: webdriver.Chrome, running: Running) -> None:
    for name, address in addresses(browser, running).items():
        for width in (1000, 390):
            browser.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500},
            )
            browser.get(address)
            assert browser.find_element(By.TAG_NAME, "h1").text
            assert browser.title.endswith(" - raftmq"), "nothing of an application ran"
            assert not browser.find_elements(By.CSS_SELECTOR, "[role=alert]"), (name, text_of(browser))
            is_wide = "return document.documentElement.scrollWidth > document.documentElement.clientWidth"
            assert not browser.execute_script(is_wide), (name, width)
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, from npm: it is in no release of ours."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm here, which gets axe-core")
    directory = tmp_path_factory.mktemp("axe")
    command = [npm, "pack", "--silent", f"axe-core@{AXE_VERSION}"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"npm does not get axe-core: {done.stderr[-200:]}")
    with tarfile.open(directory / done.stdout.split()[-1]) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_keeps_the_rules_of_accessibility(
    browser: webdriver.Chrome, running: Running, axe: str, scheme: str
) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    found: list[str] = []
    for name, address in addresses(browser, running).items():
        browser.get(address)
        # What is folded is a part of the page, too.
        browser.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        browser.execute_script(axe)
        for violation in browser.execute_async_script(RUN_AXE):
            found.append(f"{name}: {violation['id']}: {violation['help']}: {violation['nodes'][0]}")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert not found, "\n".join(found)


def test_pictures_of_the_page_about_the_console(browser: webdriver.Chrome, running: Running) -> None:
    found = addresses(browser, running)
    text = (PICTURES.parents[1] / "console.md").read_text()
    browser.get(running.address + "/alarms")
    wait_until(lambda: "looking" not in text_of(browser))
    for name, address in found.items():
        browser.set_window_size(1000, 620)
        browser.get(address)
        wait_until(lambda: not browser.find_elements(By.ID, "live-state") or "Live." in text_of(browser))
        height = int(browser.execute_script("return document.documentElement.scrollHeight"))
        browser.set_window_size(1000, min(height + 150, 620))
        picture = browser.get_screenshot_as_png()
        assert len(picture) < 120_000, name
        if os.environ.get("REWRITE"):
            PICTURES.mkdir(parents=True, exist_ok=True)
            (PICTURES / f"{name}.png").write_bytes(picture)
        assert (PICTURES / f"{name}.png").exists(), "REWRITE=1 writes it"
        assert f"images/console/{name}.png" in text, name


def test_console_is_dark_if_the_system_prefers_dark(browser: webdriver.Chrome, running: Running) -> None:
    color = "return getComputedStyle(document.body).backgroundColor"
    for scheme, expected in (("dark", "rgb(18, 23, 30)"), ("light", "rgb(255, 255, 255)")):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.get(running.address)
        assert browser.execute_script(color) == expected


def test_keyboard_reaches_the_content_and_a_form(browser: webdriver.Chrome, running: Running) -> None:
    browser.get(running.address + "/topics")
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    focused = browser.switch_to.active_element
    assert focused.text == "Skip to the content"
    focused.send_keys(Keys.ENTER)
    assert browser.switch_to.active_element.get_attribute("id") == "main"
    browser.switch_to.active_element.send_keys(Keys.TAB)
    browser.switch_to.active_element.send_keys("Order" + Keys.ENTER)
    wait_until(lambda: "part=Order" in browser.current_url)
    assert "Orders" in text_of(browser)


def test_pages_can_be_read_without_scripts(browser: webdriver.Chrome, running: Running) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(running.address)
        assert "broker-a" in text_of(browser)
        assert "Not refreshed by itself." in text_of(browser)
        assert browser.find_elements(By.LINK_TEXT, "Refresh")
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_open_page_shows_arriving_messages(browser: webdriver.Chrome, running: Running) -> None:
    browser.get(running.address + "/topic?name=Orders")
    before = browser.execute_script("return document.querySelector('.figures b').innerText")
    with SyncProducer(running.namesrv) as producer:
        producer.send(Message("Orders", b"one more"))
    after = str(int(before) + 1)
    wait_until(lambda: f"{after} messages" in text_of(browser))


def test_page_shows_that_its_refresh_has_ended(browser: webdriver.Chrome, running: Running) -> None:
    """A browser never tries again after a status such as 503."""
    command = [sys.executable, "-m", "mq.cli", "console", "--port", "0", "--namesrv", running.namesrv]
    process = subprocess.Popen([*command, "--set", "streams_max=1"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        port = json.loads(process.stderr.readline())["port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/changes?live=1") as stream:
            assert stream.readline().startswith(b"data: ")
            browser.get(f"http://127.0.0.1:{port}/")
            wait_until(lambda: "Not refreshed any more: load the page again." in text_of(browser))
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_filled_in_form_is_not_replaced(browser: webdriver.Chrome, running: Running) -> None:
    browser.get(running.address + "/topic?name=Orders")
    wait_until(lambda: "Live." in text_of(browser))
    click(browser, By.XPATH, "//summary[.='Change queues or access']")
    field = browser.find_element(By.NAME, "queues")
    field.clear()
    field.send_keys("5")
    with SyncProducer(running.namesrv) as producer:
        producer.send(Message("Orders", b"another one"))
    wait_until(lambda: "Waits until you are done." in text_of(browser))
    assert browser.find_element(By.NAME, "queues").get_attribute("value") == "5"


def test_dead_letters_are_sent_again_by_clicks(browser: webdriver.Chrome, running: Running) -> None:
    browser.get(running.address + "/dead-letters?group=mail")
    boxes = browser.find_elements(By.NAME, "letter")
    assert len(boxes) >= 12
    for box in boxes[:2]:
        box.click()
    click(browser, By.CSS_SELECTOR, "button[value=chosen]")
    wait_until(lambda: "2 done, 0 failed. It has ended." in text_of(browser))
    click(browser, By.LINK_TEXT, "Back")
    click(browser, By.CSS_SELECTOR, "button[value=all]")
    wait_until(lambda: "It has ended." in text_of(browser))
    assert ", 0 failed" not in text_of(browser) or f"{len(boxes)} done" in text_of(browser)


def test_message_sent_by_hand_appears_on_a_page_following_the_topic(
    browser: webdriver.Chrome, running: Running
) -> None:
    browser.get(running.address + "/tail?topic=Orders")
    wait_until(lambda: "Live." in text_of(browser))
    follower = browser.current_window_handle
    browser.switch_to.new_window("tab")
    try:
        browser.get(running.address + "/send?topic=Orders")
        browser.find_element(By.NAME, "body").send_keys("sent by hand")
        click(browser, By.XPATH, "//button[.='Send']")
        wait_until(lambda: "Stored at broker-a/" in text_of(browser))
        assert "What happened to it" in text_of(browser)
    finally:
        browser.close()
        browser.switch_to.window(follower)
    wait_until(lambda: "sent by hand" in text_of(browser))


def test_topic_and_a_group_are_changed_by_clicks(browser: webdriver.Chrome, running: Running) -> None:
    browser.get(running.address + "/new-topic")
    browser.find_element(By.NAME, "name").send_keys("Bills")
    click(browser, By.XPATH, "//button[.='Create']")
    wait_until(lambda: "Topic Bills was created" in text_of(browser))
    browser.get(running.address + "/reset?name=mail&topic=Orders&to=first")
    assert "Nothing is changed yet" in text_of(browser)
    click(browser, By.XPATH, "//button[.='Reset']")
    wait_until(lambda: "goes on in Orders at the first message" in text_of(browser))
    click(browser, By.XPATH, "//summary[.='Pause the group']")
    click(browser, By.XPATH, "//button[.='Pause']")
    wait_until(lambda: "mail is paused" in text_of(browser))
    browser.get(running.address + "/topic?name=Bills")
    click(browser, By.XPATH, "//summary[.='Change an attribute']")
    browser.find_element(By.NAME, "attribute").send_keys("message.type")
    browser.find_element(By.NAME, "value").send_keys("FIFO")
    click(browser, By.XPATH, "//button[.='Set']")
    wait_until(lambda: "message.type is FIFO now." in text_of(browser))
    click(browser, By.LINK_TEXT, "Delete this topic")
    browser.find_element(By.NAME, "typed").send_keys("Bills")
    click(browser, By.XPATH, "//button[.='Delete']")
    wait_until(lambda: "Topic Bills was deleted." in text_of(browser))
    browser.get(running.address + "/changes")
    assert "create topic" in text_of(browser)


def test_pending_page_recalls_and_triggers_by_click(browser: webdriver.Chrome, running: Running) -> None:
    async def create() -> None:
        async with Admin(running.namesrv) as admin:
            await admin.schedules.create(Schedule("nightly", "Orders", b"tick", Every(dt.timedelta(hours=10))))

    trio.run(create)
    with SyncProducer(running.namesrv) as producer:
        producer.send(Message("Orders", b"later", keys=["by-mistake"], delay=5000))
    browser.get(running.address + "/pending")
    wait_until(lambda: "by-mistake" in text_of(browser))
    click(browser, By.XPATH, "//button[.='Recall']")
    wait_until(lambda: "was recalled: nobody gets it" in text_of(browser))
    browser.get(running.address + "/schedules")
    click(browser, By.XPATH, "//button[.='Pause']")
    wait_until(lambda: "Schedule nightly is paused." in text_of(browser))
    click(browser, By.XPATH, "//button[.='Send now']")
    wait_until(lambda: "The message of schedule nightly was sent." in text_of(browser))


def test_setting_is_changed_by_clicks(browser: webdriver.Chrome, running: Running) -> None:
    browser.get(addresses(browser, running)["settings"])
    click(browser, By.TAG_NAME, "summary")
    browser.find_element(By.NAME, "setting").send_keys("retention_hours")
    browser.find_element(By.NAME, "value").send_keys("99.5")
    click(browser, By.XPATH, "//button[.='Change']")
    wait_until(lambda: "retention_hours is 99.5 on" in text_of(browser))


def test_leadership_is_handed_over_by_clicks(browser: webdriver.Chrome, running: Running) -> None:
    before = running.leader()
    browser.get(running.address + "/broker-group?name=broker-a")
    click(browser, By.XPATH, "//summary[.='Hand over the leadership']")
    click(browser, By.XPATH, "//button[.='Hand over']")
    wait_until(lambda: " leads in term " in text_of(browser))
    assert running.leader() != before


def test_open_page_continues_after_the_leader_is_killed(browser: webdriver.Chrome, running: Running) -> None:
    leader = running.leader()
    browser.get(running.address)
    wait_until(lambda: f"led by {leader}" in text_of(browser))
    browser.execute_script("window.isSameWindow = true")
    running.kill(leader)
    wait_until(lambda: "led by n" in text_of(browser) and f"led by {leader}" not in text_of(browser))
    wait_until(lambda: f"{leader} of broker-a does not answer" in text_of(browser))
    assert browser.execute_script("return window.isSameWindow"), "nobody loaded it again"
    browser.get(running.address + "/messages?topic=Orders")
    assert len(browser.find_elements(By.CSS_SELECTOR, "tbody tr")) >= 20


def test_new_user_finds_the_results_of_the_demonstration(browser: webdriver.Chrome, tmp_path: Path) -> None:
    """From the last lines of `raftmq demo` on: a message that seems lost, a group that lags, its dead letters."""
    command = [sys.executable, "-m", "mq.cli"]
    place = ["--dir", str(tmp_path / "demo")]
    done = subprocess.run(
        [*command, "demo", "--lines", "1000", *place], capture_output=True, text=True, timeout=180, check=True
    )
    match = re.search(r"key (\d+) in the topic (\w+), why the group (\w+) lags", done.stdout)
    assert match is not None, done.stdout
    key, topic, group = match.groups()
    more = ["dev", *place, "--console", "--port", "0", "--json"]
    ratios = [part for name in ("warn", "expire", "full") for part in ("--set", f"disk_{name}_ratio=1")]
    process = subprocess.Popen([*command, *more, *ratios], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        browser.get("http://" + json.loads(process.stdout.readline())["console"])
        click(browser, By.LINK_TEXT, "Topics")
        click(browser, By.LINK_TEXT, topic)
        click(browser, By.LINK_TEXT, "Look at messages")
        browser.find_element(By.NAME, "value").send_keys(key + Keys.ENTER)
        wait_until(lambda: len(browser.find_elements(By.CSS_SELECTOR, "td.body")) == 1)
        click(browser, By.CSS_SELECTOR, "td a")
        wait_until(lambda: "has not come to it" in text_of(browser))
        click(browser, By.LINK_TEXT, group)
        wait_until(lambda: "Nobody consumes for it: start its consumers." in text_of(browser))
        click(browser, By.LINK_TEXT, "What is wrong")
        letters = "//li[contains(., 'dead letters')]//a"
        wait_until(lambda: browser.find_elements(By.XPATH, letters))
        click(browser, By.XPATH, letters)
        wait_until(lambda: "no address for line" in text_of(browser))
        click(browser, By.CSS_SELECTOR, "button[value=all]")
        wait_until(lambda: "It has ended." in text_of(browser))
        assert " 0 failed" in text_of(browser)
    finally:
        browser.get("about:blank")  # an open page would complain that the console is gone
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
