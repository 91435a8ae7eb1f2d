// Measures each page in a frame: writes illegible, overlapping or overflowing texts as JSON into `pre`.
const rgb = text => (text.match(/[\d.]+/g) || []).map(Number);
const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
const contrast = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
};

function ground(element, view) {
    for (let at = element; at; at = at.parentElement) {
        const colour = rgb(view.getComputedStyle(at).backgroundColor);
        if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
}

function measure(frame) {
    const page = frame.contentDocument, view = frame.contentWindow, width = frame.clientWidth;
    page.querySelectorAll("details").forEach(part => { part.open = true; });
    const problems = [], root = page.documentElement;
    if (root.scrollWidth > width) problems.push(`wider: ${root.scrollWidth}`);
    let texts = 0;
    const walker = page.createTreeWalker(page.body, 4);
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement, said = walker.currentNode.data.trim();
        if (!said || element.tagName === "title" || !element.getClientRects().length) continue;
        texts += 1;
        const style = view.getComputedStyle(element), svg = element.namespaceURI.endsWith("svg");
        const ratio = contrast(rgb(svg ? style.fill : style.color), ground(element, view));
        if (ratio < 4.5) problems.push(`contrast ${ratio.toFixed(2)}: ${said.slice(0, 40)}`);
        const box = element.getBoundingClientRect();
        if (!element.closest(".scroll, pre, .who") && (box.left < 0 || box.right > width + 0.5))
            problems.push(`hangs out, ${box.left.toFixed()} to ${box.right.toFixed()}: ${said.slice(0, 40)}`);
    }
    for (const axis of page.querySelectorAll(".axis svg")) {
        const boxes = [...axis.querySelectorAll("text")].map(label => label.getBoundingClientRect())
            .filter(box => box.width).sort((a, b) => a.left - b.left);
        boxes.slice(1).forEach((box, at) => {
            if (box.left < boxes[at].right + 4) problems.push(`overlaps: label ${at + 1} of an axis`);
        });
    }
    page.getElementById("timeline")?.scrollIntoView();  // for pictures
    return {name: frame.title, texts, problems, dark: light(ground(page.body, view)) < 0.5};
}

addEventListener("load", () => {
    document.querySelector("pre").textContent = JSON.stringify([...document.querySelectorAll("iframe")].map(measure));
});
