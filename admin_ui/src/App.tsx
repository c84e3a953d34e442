/** Which page an address shows, for a tenant, for an operator, and for nobody yet. */

import { lazy, Suspense, useState } from "react";
import { Navigate, Route, Routes } from "react-router";
import { useIsKnown, useSession } from "./api/context";
import { PageBoundary } from "./components/PageBoundary";
import { Shell } from "./components/Shell";
import { TableSkeleton } from "./components/states";
import { takeInvitation } from "./invitation/invitation";
import { LiveProvider } from "./live/context";
import { routesOf } from "./routes";
import { UploadsProvider } from "./tenant/upload/context";

const InvitationPage = lazy(() => import("./invitation/InvitationPage"));
const NoPlacePage = lazy(() => import("./signin/NoPlacePage"));
const SignInPage = lazy(() => import("./signin/SignInPage"));

export function App() {
  return (
    <Suspense>
      <Door />
    </Suspense>
  );
}

function Door() {
  const { session } = useSession();
  const isKnown = useIsKnown();
  const [invitation, setInvitation] = useState(takeInvitation);
  if (!isKnown) return null;
  if (invitation !== null)
    return <InvitationPage token={invitation} onDone={() => setInvitation(null)} />;
  if (session === null) return <SignInPage />;
  if (session.place === null) return <NoPlacePage />;
  const opened = routesOf(session.place);
  const first = opened[0];
  if (first === undefined) return <NoPlacePage />;
  return (
    <LiveProvider>
      <UploadsProvider>
        <Shell>
          <PageBoundary>
            <Suspense fallback={<TableSkeleton />}>
              <Routes>
                {opened.map(({ path, page: Page }) => (
                  <Route key={path} path={path} element={<Page />} />
                ))}
                <Route path="*" element={<Navigate to={first.path} replace />} />
              </Routes>
            </Suspense>
          </PageBoundary>
        </Shell>
      </UploadsProvider>
    </LiveProvider>
  );
}
