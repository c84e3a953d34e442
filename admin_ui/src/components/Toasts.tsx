import "@mantine/notifications/styles.css";
import { Notifications } from "@mantine/notifications";

/** Where what has just been done is confirmed. Loaded after the page: nothing is there at first. */
export default function Toasts() {
  return <Notifications position="top-right" />;
}
