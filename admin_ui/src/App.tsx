/** Which page an address shows, for a tenant, for an operator, and for nobody yet. */

import { lazy, type ReactNode, Suspense, useState } from "react";
import { Navigate, Route, Routes } from "react-router";
import { AdaptersPage } from "./adapters/AdaptersPage";
import { useIsKnown, useSession } from "./api/context";
import { destinationsOf } from "./components/destinations";
import { Shell } from "./components/Shell";
import { TableSkeleton } from "./components/states";
import { KeysPage } from "./keys/KeysPage";
import { InvitationPage } from "./people/InvitationPage";
import { takeInvitation } from "./people/invitation";
import { PeoplePage } from "./people/PeoplePage";
import { PlaygroundPage } from "./playground/PlaygroundPage";
import { NoPlacePage } from "./signin/NoPlacePage";
import { SignInPage } from "./signin/SignInPage";
import { TenantsPage } from "./tenants/TenantsPage";

// The charts are half of the bundle; only these pages need them.
const UsagePage = lazy(() => import("./usage/UsagePage"));
const EnginePage = lazy(() => import("./engine/EnginePage"));

const PAGES: Record<string, ReactNode> = {
  "/adapters": <AdaptersPage />,
  "/playground": <PlaygroundPage />,
  "/usage": <UsagePage />,
  "/keys": <KeysPage />,
  "/people": <PeoplePage />,
  "/operator/tenants": <TenantsPage />,
  "/operator/engine": <EnginePage />,
};

export function App() {
  const { session } = useSession();
  const isKnown = useIsKnown();
  const [invitation, setInvitation] = useState(takeInvitation);
  if (!isKnown) return null;
  if (invitation !== null)
    return <InvitationPage token={invitation} onDone={() => setInvitation(null)} />;
  if (session === null) return <SignInPage />;
  if (session.place === null) return <NoPlacePage />;
  const opened = destinationsOf(session.place);
  return (
    <Shell>
      <Suspense fallback={<TableSkeleton />}>
        <Routes>
          {opened.map(({ to }) => (
            <Route key={to} path={to} element={PAGES[to]} />
          ))}
          {opened[0] && <Route path="*" element={<Navigate to={opened[0].to} replace />} />}
        </Routes>
      </Suspense>
    </Shell>
  );
}
