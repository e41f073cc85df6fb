/* Unpacks chemiscope and its data, which are part of this page, and connects them to the controls around them. */
"use strict";

async function unpacked(id) {
    const text = document.getElementById(id).textContent.trim();
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
}

function offer(id, choices, apply) {
    const select = document.getElementById(id);
    for (const label of Object.keys(choices)) {
        select.add(new Option(label, label));
    }
    select.addEventListener("change", () => apply(choices[select.value]));
    select.parentElement.hidden = Object.keys(choices).length < 2;
}

function connectRows(viewer) {
    for (const button of document.querySelectorAll("button[data-structure]")) {
        button.hidden = false;
        button.addEventListener("click", () => {
            viewer.select(viewer.indexer.fromEnvironment(Number(button.dataset.structure), "structure"));
            document.getElementById("viewer").scrollIntoView({ behavior: "smooth" });
        });
    }
}

async function startViewer() {
    const program = document.createElement("script");
    program.textContent = await unpacked("chemiscope-program");
    document.head.append(program);
    const { dataset, maps, colorings } = JSON.parse(await unpacked("chemiscope-data"));
    for (const property of Object.values(dataset.properties)) {
        property.values = property.values.map((value) => (value === null ? NaN : value));
    }
    const places = { map: "viewer-map", structure: "viewer-structure", info: "viewer-info", meta: "viewer-meta" };
    const scattered = Object.keys(maps).length > 0;
    const kind = scattered ? Chemiscope.DefaultVisualizer : Chemiscope.StructureVisualizer;
    document.getElementById("viewer-map").parentElement.hidden = !scattered;
    const viewer = await kind.load(places, dataset);
    const redraw = () => viewer.structure.show(viewer.structure.pinned()[0]); // new settings are not drawn before
    await redraw();
    offer("choose-map", maps, (map) => viewer.applySettings({ map }));
    offer("choose-color", colorings, (color) => {
        viewer.applySettings({ structure: [{ color }] });
        redraw();
    });
    connectRows(viewer);
    return viewer;
}

startViewer().then(
    () => {
        document.getElementById("viewer").dataset.state = "ready";
    },
    (error) => {
        const message = document.getElementById("viewer-message");
        message.textContent = `The viewer could not start in this browser: ${error.message ?? error}`;
        document.getElementById("viewer").dataset.state = "failed";
    },
);
