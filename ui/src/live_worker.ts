// The shared worker: however many tabs are open, the server has one stream of this browser.
import type { FromWorker, ToWorker } from "./live_messages";
import { LiveStream } from "./live_stream";

const tabs = new Map<MessagePort, string[]>();
let connection: FromWorker = { connection: "connecting" };

const stream = new LiveStream((message) => {
  if ("connection" in message) connection = message;
  for (const port of tabs.keys()) port.postMessage(message);
});

(self as unknown as { onconnect: (event: MessageEvent) => void }).onconnect = (event) => {
  const port = event.ports[0];
  if (!port) return;
  port.onmessage = ({ data }: MessageEvent<ToWorker>) => {
    if ("bye" in data) {
      tabs.delete(port);
      return;
    }
    if (!tabs.has(port)) port.postMessage(connection);
    tabs.set(port, data.topics);
    stream.follow(data.address, [...tabs.values()].flat());
  };
  port.start();
};
