// Python in colours. The text is cut into pieces that are shown as text, whatever they hold.

const WORDS = new Set(("False None True and as assert async await break class continue def del elif else except finally " +
  "for from global if import in is lambda match nonlocal not or pass raise return try while with yield").split(" "));
const PIECES = new RegExp([
  "(#[^\\n]*)",
  "((?:[rbfuRBFU]{0,2})(?:\"\"\"[\\s\\S]*?(?:\"\"\"|$)|'''[\\s\\S]*?(?:'''|$)|\"(?:\\\\.|[^\"\\\\\\n])*\"?|'(?:\\\\.|[^'\\\\\\n])*'?))",
  "(\\b\\d[\\w.]*)",
  "([A-Za-z_]\\w*)",
].join("|"), "g");

// Pairs of a class and a text, which together are the source.
function pieces(source) {
  const found = [];
  let end = 0, before = "";
  for (const match of source.matchAll(PIECES)) {
    if (match.index > end) found.push(["", source.slice(end, match.index)]);
    const [text, comment, string, digits, word] = match;
    let kind = "";
    if (comment !== undefined) kind = "z";
    else if (string !== undefined) kind = "s";
    else if (digits !== undefined) kind = "m";
    else if (before === "def" || before === "class") kind = "d";
    else if (WORDS.has(word)) kind = "k";
    if (word !== undefined) before = word;
    found.push([kind, text]);
    end = match.index + text.length;
  }
  found.push(["", source.slice(end)]);
  return found;
}

function highlighted(source) {
  const box = make("pre", { class: "codebox", tabindex: "0", "aria-label": "Program" });
  let line = make("span", { class: "line" });
  for (const [kind, text] of pieces(source)) {
    text.split("\n").forEach((part, k) => {
      if (k) {
        box.append(line);
        line = make("span", { class: "line" });
      }
      if (part) line.append(kind ? make("span", { class: kind, text: part }) : part);
    });
  }
  if (line.childNodes.length) box.append(line);
  return box;
}
