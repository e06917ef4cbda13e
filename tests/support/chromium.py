"""Debian's Chromium without a window, driven by Selenium; modules of tests open it by a fixture."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException

from tests.support.waiting import wait_until

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
IN_CHROMIUM = [
    pytest.mark.process,
    pytest.mark.nightly,
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None, reason="no Chromium here: apt-get install chromium chromium-driver"
    ),
]
"""Marks of modules that use the fixture `browser`."""


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """Open while the block runs. Whoever asks for it looks first whether there is one."""
    assert CHROMIUM is not None
    assert DRIVER is not None
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--disable-dev-shm-usage",
        "--force-color-profile=srgb",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


@contextmanager
def window(started: webdriver.Chrome) -> Iterator[webdriver.Chrome]:
    """A window of 1,000 pixels; afterwards nothing may have gone wrong in it, such as a script that was not allowed."""
    started.set_window_size(1000, 800)
    yield started
    faults = [each for each in cast("Any", started).get_log("browser") if each["level"] == "SEVERE"]
    assert [each for each in faults if "/?live" not in each["message"] and "favicon" not in each["message"]] == []


@contextmanager
def left_afterwards(browser: webdriver.Chrome) -> Iterator[None]:
    """An open page would complain that the console is gone."""
    try:
        yield
    finally:
        browser.get("about:blank")


def text_of(browser: webdriver.Chrome) -> str:
    return str(browser.execute_script("return document.querySelector('main').innerText"))


def click(browser: webdriver.Chrome, by: str, value: str) -> None:
    """Click at an element, which may be replaced by the same one at that moment."""

    def clicked() -> bool:
        try:
            browser.find_element(by, value).click()
        except StaleElementReferenceException:
            return False
        return True

    wait_until(clicked)
