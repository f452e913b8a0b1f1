// What a page is asked about itself: text that is hard to read, and controls without names.
({
  hardToRead: () => {
  const channel = (v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const context = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const over = (...colours) => {
    context.clearRect(0, 0, 1, 1);
    for (const colour of colours) { context.fillStyle = colour; context.fillRect(0, 0, 1, 1); }
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => { const [r, g, b] = rgb.map(channel); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const backs = (node) => (node ? [...backs(node.parentElement), getComputedStyle(node).backgroundColor] : ["white"]);
  const bad = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    const style = getComputedStyle(node);
    if (!text.data.trim() || !node.checkVisibility({ opacityProperty: true, visibilityProperty: true }) || node.closest("svg, [disabled], .sr, .skip, option")) continue;
    const back = backs(node);
    const [a, b] = [light(over(...back, style.color)), light(over(...back))].sort((x, y) => y - x);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < (large ? 3 : 4.5)) bad.push(`${ratio.toFixed(2)}: ${text.data.trim().slice(0, 40)}`);
  }
  return bad;
},

  nameless: () => [...document.querySelectorAll("button, a[href], input, select, textarea, [role=grid], dialog[open]")]
  .filter((node) => node.checkVisibility())
  .filter((node) => !(node.getAttribute("aria-label") || node.getAttribute("aria-labelledby") || node.labels?.length || node.title || node.textContent.trim() || node.placeholder))
  .map((node) => node.outerHTML.slice(0, 120)),
})
