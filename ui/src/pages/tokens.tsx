// Tokens of programs.
import { useState } from "preact/hooks";

import { ask, type Page, part, post, type Token } from "../api";
import { useRead } from "../live";
import { Ago, Ask, CodeBlock, Dialog, Empty, Loading, PageHead, toast, Trouble, useTitle } from "../parts/basics";

interface MadeToken {
  token: Token;
  secret: string;
}

const ROLES = ["viewer", "operator", "admin", "service"];

export function TokensPage() {
  useTitle("Tokens");
  const read = useRead<Page<Token>>("tokens");
  const [making, setMaking] = useState(false);
  const [made, setMade] = useState<MadeToken | null>(null);
  const [gone, setGone] = useState<Token | null>(null);
  const all = read.data?.items ?? [];
  return (
    <>
      <PageHead title="Tokens" says="For programs that call the API. A secret is shown once, and stored only as its hash."><button class="button primary" onClick={() => setMaking(true)}>New token…</button></PageHead>
      {read.problem && <Trouble problem={read.problem} again={read.again} />}
      {!read.data && !read.problem && <Loading rows={3} />}
      {read.data && all.length === 0 && <Empty title="No tokens" code={`curl -H "Authorization: Bearer pdr_…" https://…/api/v1/jobs`}>Give each program a token of its own, with no more rights than it needs.</Empty>}
      {all.length > 0 && (
        <div class="table-box" tabIndex={0} role="region" aria-label="Tokens">
          <table class="narrow-cards">
            <thead><tr><th>Name</th><th>Roles</th><th class="num">Made</th><th class="num">Expires</th><th class="num">Last used</th><th><span class="sr">Actions</span></th></tr></thead>
            <tbody>
              {all.map((each) => (
                <tr key={each.id} class={each.revoked_at ? "faded" : ""}>
                  <td data-label="Name"><bdi>{each.name}</bdi> <span class="mono muted">{each.id.slice(0, 8)}</span></td>
                  <td data-label="Roles">{each.roles.join(", ")}</td>
                  <td data-label="Made" class="num"><Ago at={each.created_at} /></td>
                  <td data-label="Expires" class="num"><Ago at={each.expires_at} /></td>
                  <td data-label="Last used" class="num"><Ago at={each.last_used_at} /></td>
                  <td class="num">{each.revoked_at ? <span class="muted">revoked</span> : <button class="button small" onClick={() => setGone(each)}>Revoke…</button>}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {making && <NewToken close={() => setMaking(false)} made={(token) => { setMade(token); read.again(); }} />}
      {made && (
        <Dialog title={`The secret of ${made.token.name}`} close={() => setMade(null)}>
          <div class="dialog-content"><p>Copy it now: it is not shown again.</p><CodeBlock text={made.secret} /></div>
          <footer><button class="button primary" onClick={() => setMade(null)}>Done</button></footer>
        </Dialog>
      )}
      {gone && (
        <Ask title={`Revoke ${gone.name}`} verb="Revoke it" danger reason={null} close={() => setGone(null)}
          run={async () => {
            await ask("DELETE", `tokens/${part(gone.id)}`);
            toast("Revoked");
            read.again();
          }}>
          <p>Programs that use it are refused from now on.</p>
        </Ask>
      )}
    </>
  );
}

function NewToken({ close, made }: { close: () => void; made: (token: MadeToken) => void }) {
  const [name, setName] = useState("");
  const [role, setRole] = useState("service");
  const [days, setDays] = useState(90);
  return (
    <Ask title="New token" verb="Make it" reason={null} disabled={!name.trim()} close={close}
      run={async () => made(await post<MadeToken>("tokens", { name: name.trim(), roles: [role], lifetime: days * 86400 }))}>
      <div class="field"><label for="token-name">Name</label><input id="token-name" maxLength={100} value={name} onInput={(event) => setName(event.currentTarget.value)} /></div>
      <div class="field"><label for="token-role">Role</label><select id="token-role" value={role} onChange={(event) => setRole(event.currentTarget.value)}>{ROLES.map((each) => <option key={each}>{each}</option>)}</select></div>
      <div class="field"><label for="token-days">Days until it expires</label><input id="token-days" type="number" min={1} max={365} value={days} onInput={(event) => setDays(Number(event.currentTarget.value))} /></div>
    </Ask>
  );
}
