#!/usr/bin/env python3
"""Takes README's picture of the page, server/ui/page.webp: a conversation and the live view, while
six clients keep the daemon busy. Run it with build/venv/bin/python on a machine that has nothing
else to do.
"""

import base64
import random
import threading

from playwright.sync_api import sync_playwright
from test_page import CHROMIUM, ROOT, STORY, Tab, start

THINGS = ["fox", "boat", "bear", "river", "garden", "dog", "kite", "tree", "house", "cat", "lake"]
CLIENTS = 6
SECONDS = 100  # the charts show two minutes


def ask_on(served, seed, ended):
    """One client: stories, with pauses, until `ended`."""
    chance = random.Random(seed)
    while not ended.wait(chance.random()):
        story = f"Tell me a story about a {chance.choice(THINGS)} and a {chance.choice(THINGS)}."
        served.post("/v1/chat/completions", {
            "model": "lockstep-demo", "max_tokens": 160,
            "messages": [{"role": "user", "content": story}]})


def take(browser, served, target):
    tab = Tab(browser, served.url + "/", viewport={"width": 1360, "height": 1000},
              color_scheme="light", device_scale_factor=2)
    tab.page.click("#show-parameters")
    tab.page.fill("#parameter-temperature", "0")
    tab.page.click("#show-machine")
    for question in ["What can you do?", STORY]:
        tab.ask(question)
        tab.wait_for_answer()
    tab.page.wait_for_timeout(SECONDS * 1000)
    tab.page.locator(".cells .used").nth(8).wait_for()  # a moment in which much runs
    session = tab.context.new_cdp_session(tab.page)
    picture = session.send("Page.captureScreenshot", {"format": "webp", "quality": 82})
    target.write_bytes(base64.b64decode(picture["data"]))


def main():
    target = ROOT / "server/ui/page.webp"
    served = start()
    ended = threading.Event()
    clients = [
        threading.Thread(target=ask_on, args=(served, seed, ended)) for seed in range(CLIENTS)
    ]
    for client in clients:
        client.start()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=str(CHROMIUM), args=["--no-sandbox"])
            take(browser, served, target)
    finally:
        ended.set()
        for client in clients:
            client.join()
        served.stop()
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
