/** Where the page is mounted: the folder above the one of this script, such as "/ops/". */
export const base = new URL("..", import.meta.url).pathname;

export const url = (path: string): string => base + path.replace(/^\//, "");
