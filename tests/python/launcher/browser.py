"""A real browser without a window: Chromium, driven over its debugging port."""
import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import subprocess

import aiohttp
from hvdrun import wait_until

CHROMIUM = shutil.which("chromium")


class Page:
    """One tab."""

    def __init__(self, socket):
        self.socket, self.numbers, self.errors = socket, itertools.count(1), []

    async def call(self, method, **params):
        number = next(self.numbers)
        await self.socket.send_json({"id": number, "method": method, "params": params})
        while True:
            message = await self.socket.receive_json(timeout=60)
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.errors.append(message["params"])
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    async def value(self, expression):
        """Of JavaScript."""
        result = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, expression, limit=60):
        end = asyncio.get_running_loop().time() + limit
        while not (value := await self.value(expression)):
            assert asyncio.get_running_loop().time() < end, \
                f"{expression}: {await self.value('document.body.innerText')}"
            await asyncio.sleep(0.1)
        return value

    async def picture(self, path, width=1280, height=900):
        await self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                        deviceScaleFactor=1, mobile=width < 600)
        await asyncio.sleep(0.3)        # for the layout; the picture is for people
        data = await self.call("Page.captureScreenshot", captureBeyondViewport=False)
        with open(path, "wb") as file:
            file.write(base64.b64decode(data["data"]))


@contextlib.asynccontextmanager
async def browser(folder):
    """A page in a browser of its own, whose files lie in the folder."""
    process = subprocess.Popen(
        [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-extensions",
         "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        file = os.path.join(folder, "DevToolsActivePort")
        port = await asyncio.to_thread(
            wait_until, lambda: os.path.exists(file) and open(file).read().split("\n")[0])
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                tab = next(t for t in await answer.json() if t["type"] == "page")
            async with session.ws_connect(tab["webSocketDebuggerUrl"],
                                          max_msg_size=1 << 26) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await page.call(f"{domain}.enable")
                yield page
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
