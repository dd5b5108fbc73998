// without a script every text is there; this adds copying
for (const text of document.querySelectorAll("pre"))
  text.previousElementSibling.append(Object.assign(button(["Copy"], async event => {
    getSelection().selectAllChildren(text); // stays selected where the browser forbids the clipboard
    await navigator.clipboard.writeText(text.textContent);
    event.target.textContent = "Copied";
  }), { className: "copy" }));
