/** Which page an address shows, for a tenant, for an operator, and for nobody yet. */

import { lazy, Suspense, useState } from "react";
import { matchPath, Navigate, Route, Routes, useLocation } from "react-router";
import { useIsKnown, useSession } from "./api/context";
import type { Role } from "./api/session";
import { NoAccessPage, NotFoundPage } from "./components/NotFoundPage";
import { PageBoundary } from "./components/PageBoundary";
import { Shell } from "./components/Shell";
import { SuspendedPage } from "./components/SuspendedPage";
import { TableSkeleton } from "./components/states";
import { takeInvitation } from "./invitation/invitation";
import { LiveProvider } from "./live/context";
import { type PageRoute, ROUTES, routesOf } from "./routes";
import { UploadsProvider } from "./tenant/upload/context";

/** After signing in at a page of the other side one is at its own first page. */
function Elsewhere({ first, role }: { first: PageRoute; role: Role }) {
  const { pathname } = useLocation();
  const closed = ROUTES[role].find(({ path }) => matchPath(path, pathname));
  if (closed) return <NoAccessPage label={closed.label} first={first} />;
  const isKnown = Object.values(ROUTES).some((pages) =>
    pages.some(({ path }) => matchPath(path, pathname)),
  );
  return isKnown ? <Navigate to={first.path} replace /> : <NotFoundPage first={first} />;
}

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
  const { session, isSuspended } = useSession();
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
            {isSuspended ? (
              <SuspendedPage />
            ) : (
              <Suspense fallback={<TableSkeleton />}>
                <Routes>
                  {opened.map(({ path, page: Page }) => (
                    <Route key={path} path={path} element={<Page />} />
                  ))}
                  <Route path="/" element={<Navigate to={first.path} replace />} />
                  <Route path="*" element={<Elsewhere first={first} role={session.place.role} />} />
                </Routes>
              </Suspense>
            )}
          </PageBoundary>
        </Shell>
      </UploadsProvider>
    </LiveProvider>
  );
}
