/** Which page an address shows, for a tenant, for an operator, and for nobody yet. */

import { Suspense, useState } from "react";
import { Navigate, Route, Routes } from "react-router";
import { useIsKnown, useSession } from "./api/context";
import { PageBoundary } from "./components/PageBoundary";
import { Shell } from "./components/Shell";
import { TableSkeleton } from "./components/states";
import { InvitationPage } from "./invitation/InvitationPage";
import { takeInvitation } from "./invitation/invitation";
import { LiveProvider } from "./live/context";
import { routesOf } from "./routes";
import { NoPlacePage } from "./signin/NoPlacePage";
import { SignInPage } from "./signin/SignInPage";
import { UploadsProvider } from "./tenant/upload/context";

export function App() {
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
