import { render } from "preact";
import { useEffect } from "preact/hooks";

import { get, Problem, type Session, session } from "./api";
import { startLive } from "./live";
import { Empty, Trouble } from "./parts/basics";
import { ApprovalsPage } from "./pages/approvals";
import { AuditPage } from "./pages/audit";
import { ComparePage } from "./pages/compare";
import { EffectsPage } from "./pages/effects";
import { ErrorsPage } from "./pages/errors";
import { JobPage, prefetch } from "./pages/job";
import { JobsPage } from "./pages/jobs";
import { MetricsPage } from "./pages/metrics";
import { ProcessesPage } from "./pages/processes";
import { SchedulesPage } from "./pages/schedules";
import { TokensPage } from "./pages/tokens";
import { WorkersPage } from "./pages/workers";
import { go, Link, match, path } from "./router";
import { PLACES, Shell } from "./shell";
import { may } from "./api";
import "./style.css";

function Pages() {
  const job = match("/jobs/:id");
  if (job) return <JobPage key={job.id} id={job.id ?? ""} />;
  switch (path.value.replace(/\/$/, "")) {
    case "":
      return <Home />;
    case "/jobs":
      return <JobsPage />;
    case "/compare":
      return <ComparePage />;
    case "/inbox":
      return <ApprovalsPage />;
    case "/effects":
      return <EffectsPage />;
    case "/workers":
      return <WorkersPage />;
    case "/processes":
      return <ProcessesPage />;
    case "/schedules":
      return <SchedulesPage />;
    case "/errors":
      return <ErrorsPage />;
    case "/charts":
      return <MetricsPage />;
    case "/audit":
      return <AuditPage />;
    case "/tokens":
      return <TokensPage />;
    default:
      return <Empty title="There is no such page">The address <code>{path.value}</code> leads nowhere. <Link to="/jobs">Show all jobs</Link></Empty>;
  }
}

/** The first page that this principal may see. */
function Home() {
  useEffect(() => go(PLACES.find((each) => may(each.permission))?.to ?? "/jobs", true), []);
  return null;
}

async function start(): Promise<void> {
  const place = document.getElementById("page");
  if (!place) return;
  const job = match("/jobs/:id")?.id;
  if (job) prefetch(job);
  try {
    session.value = await get<Session>("session");
  } catch (error) {
    if (error instanceof Problem && error.status === 401) return; // on its way to the sign-in
    const problem = error instanceof Problem ? error : new Problem(0, "", String(error));
    render(<main class="alone"><Trouble problem={problem} again={() => location.reload()} /></main>, place);
    return;
  }
  startLive();
  render(<Shell><Pages /></Shell>, place);
}

void start();
