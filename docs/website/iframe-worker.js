// a page that was opened as a file may start no worker: the search's then runs in a hidden frame
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(source) {
      super();
      const frame = Object.assign(document.createElement("iframe"), { hidden: true, title: "search" });
      document.documentElement.append(frame);
      const inner = frame.contentWindow, script = frame.contentDocument.createElement("script");
      inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
      this.started = new Promise(resolve => { script.onload = () => resolve(inner); });
      script.src = source;
      frame.contentDocument.documentElement.append(script);
    }
    async postMessage(data) {
      (await this.started).dispatchEvent(new MessageEvent("message", { data }));
    }
  };
