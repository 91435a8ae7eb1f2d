// A browser starts no worker for a page that is a file. A hidden frame runs the worker's script instead: search works.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = data => setTimeout(() => this.onmessage?.({ data }))
      this.started = new Promise((resolve, reject) => {
        const script = inside.document.createElement("script")
        script.src = url
        script.onload = resolve
        script.onerror = reject
        inside.document.body.append(script)
      })
    }

    postMessage(data) {
      const message = new MessageEvent("message", { data })
      this.started.then(() => this.frame.contentWindow.dispatchEvent(message), error => this.onerror?.(error))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
