// Whether the window is as narrow as a phone.
import { useEffect, useState } from "preact/hooks";

export function useNarrow(): boolean {
  const [narrow, setNarrow] = useState(innerWidth < 760);
  useEffect(() => {
    const measure = () => setNarrow(innerWidth < 760);
    addEventListener("resize", measure);
    return () => removeEventListener("resize", measure);
  }, []);
  return narrow;
}
