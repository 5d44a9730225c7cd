// The pages of neighbors, near-duplicates and clusters: nothing but the scheme.

import { setUpPage, setUpScheme } from "./page.js";

setUpPage();
setUpScheme(() => {});
document.documentElement.dataset.ready = "true";
